"""Bridges to other array libraries, each in a module that is named after the library that it needs.

meshard itself imports none of them: JAX is needed only by `import meshard.interop.jax`.
"""
