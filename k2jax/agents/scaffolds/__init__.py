"""White-box scaffolds: ``chat`` (answers and observations in turn) and ``context`` (what becomes of a long history).

The interface is ``k2jax.agents.scaffold``; the scaffold of agents in programs of their own is in ``gateway``.
"""
