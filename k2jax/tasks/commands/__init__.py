"""TODO k2jax/tasks/commands."""
