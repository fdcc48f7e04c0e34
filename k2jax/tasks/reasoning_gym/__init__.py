"""TODO k2jax/tasks/reasoning_gym."""
