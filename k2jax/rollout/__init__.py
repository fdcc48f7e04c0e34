"""The command ``python -m k2jax.rollout``: ``k2jax.agents.collect`` over a checkpoint or a server."""
