"""TODO k2jax/agents/collect."""
