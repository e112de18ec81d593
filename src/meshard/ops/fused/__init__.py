"""Operations that run together: chains of rows, segments, and compilers of them."""
