"""TODO k2jax/tasks/terminal."""
