"""TODO k2jax/tasks/expressions."""
