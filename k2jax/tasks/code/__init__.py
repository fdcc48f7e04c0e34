"""TODO k2jax/tasks/code."""
