"""TODO k2jax/tasks/verifiers."""
