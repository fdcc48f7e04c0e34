"""TODO k2jax/tasks/characters."""
