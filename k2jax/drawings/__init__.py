"""TODO k2jax/drawings."""
