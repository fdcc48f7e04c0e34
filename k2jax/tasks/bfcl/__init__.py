"""TODO k2jax/tasks/bfcl."""
