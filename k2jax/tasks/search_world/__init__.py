"""TODO k2jax/tasks/search_world."""
