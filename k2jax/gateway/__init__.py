"""The command ``python -m k2jax.gateway``: ``k2jax.agents.gateway`` over a checkpoint."""
