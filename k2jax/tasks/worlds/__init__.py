"""Simulated worlds: a state of records, tools whose effects on it are data, failures at given rates, and users.

In reading order: ``semantics`` (the language of conditions and effects), ``world_spec`` (what a world is made of, and
its check), ``world`` (one episode's state), ``failures`` and ``users``. Worlds are drawn by ``grammar`` from ``parts``
(``ledger``, ``tickets``, ``bookings``). Episodes work in them by ``world_tools``, ``dialogue``, ``goals`` (the
verifier) and ``dataset``.
"""
