"""Bridges to other array libraries, each in a module that needs the library it is named after.

Nothing here is imported by meshard itself: `import meshard.interop.jax` is what asks for JAX.
"""
