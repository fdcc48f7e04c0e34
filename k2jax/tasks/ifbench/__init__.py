"""TODO k2jax/tasks/ifbench."""
