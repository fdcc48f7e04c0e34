"""TODO k2jax/tasks/instructions."""
