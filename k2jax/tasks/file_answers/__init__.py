"""TODO k2jax/tasks/file_answers."""
