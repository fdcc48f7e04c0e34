"""TODO k2jax/aot/hlo."""
