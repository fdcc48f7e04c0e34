"""TODO k2jax/tasks/mathematics."""
