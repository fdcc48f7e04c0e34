"""TODO k2jax/tasks/pictures."""
