"""TODO k2jax/tasks/running_totals."""
