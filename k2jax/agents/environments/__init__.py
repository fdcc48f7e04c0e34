"""TODO k2jax/agents/environments."""
