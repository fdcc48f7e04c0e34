"""One controller and its followers: a run of several training processes, whose episodes run in the first one alone.

In reading order: ``commands`` (what the loop and its samplers ask of the log of commands, and the run of one process),
``controller`` (process 0: it writes the log), ``leading_engine`` (an engine whose calls are written), ``follower`` (the
others: they replay it), ``request_form`` and ``group_form`` (requests and groups as messages), ``digests`` (what is
compared before a program is issued), ``samplers`` (what the loop sees of both); ``opening`` puts them together.

The processes of an engine that joins a run are led in the same way, see ``k2jax.serve.engine_part``.
"""
