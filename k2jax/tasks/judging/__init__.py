"""TODO k2jax/tasks/judging."""
