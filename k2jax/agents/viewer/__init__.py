"""TODO k2jax/agents/viewer."""
