"""Attacks on what runs tasks, serves models and reads data, each in a new process that measures what it costs.

``python -m tests.hostile [--backend=bwrap,nsjail] [--only=WORDS]`` makes all of them and prints a table; it fails where
an outcome is wrong, memory grows by more than 300 MB, an event loop stands still for 0.5 s longer than that of a
control process in the same time, or a server answers with a status of 5xx.

Reading order: ``attack`` (what one is), ``catalog`` (all of them), ``probe`` (what is measured), ``host`` and
``served`` (the processes that are attacked), ``targets`` (servers as an attacker sees them), ``runner`` (one attack
beside its control), ``__main__`` (the table). The files ``*_attacks`` have the attacks by subject; those inside of a
sandbox that ``python -m k2jax.sandbox check`` makes too are the library's own.
"""
