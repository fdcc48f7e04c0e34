"""TODO k2jax/tasks/swe."""
