"""TODO k2jax/tasks/tables."""
