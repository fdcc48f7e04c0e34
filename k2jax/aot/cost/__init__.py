"""TODO k2jax/aot/cost."""
