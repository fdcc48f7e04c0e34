"""Harnesses of others as scaffolds: a program that runs agents and benchmarks by itself, and hands back a reward.

The program is the user's own, and runs outside every sandbox of this project with the user's rights; whatever its
agents do is confined by its own containers. In reading order: ``command`` (the scaffold), ``kept_program`` and
``keeper`` (the program as a process, of which nothing is left), ``closing`` (where a reward is handed back),
``handed_back`` (what a reward may be, and its verifier). It answers at the address of
``k2jax.agents.gateway.listener``.
"""
