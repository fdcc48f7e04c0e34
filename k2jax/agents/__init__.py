"""TODO k2jax/agents."""
