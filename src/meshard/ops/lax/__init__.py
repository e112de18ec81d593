"""Operations by the names of ``jax.lax``."""
