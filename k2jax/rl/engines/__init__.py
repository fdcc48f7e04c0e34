"""Engines in processes of their own, which take each version of the weights and generate while the trainer updates.

In reading order: ``engine_checks`` (what is refused), ``run_record`` (where engines find a run), ``joined_engine`` (one
of them, seen from the run), ``engine_pool`` (all of them, as one client), ``own_engines`` (those that the run starts),
``separate_policy`` (what the loop asks: weights go to a store, tokens come from the pool). The other end, which joins,
is ``k2jax.serve.run_engine``.
"""
