"""TODO k2jax/agents/gateway."""
