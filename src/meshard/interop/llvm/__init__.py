"""Operations that jit fuses, compiled by LLVM to one loop nest, with NumPy's own bits."""
