"""TODO k2jax/tasks/tau2."""
