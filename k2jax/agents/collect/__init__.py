"""Collects the episodes of many tasks in worker processes, with leases, a journal and resumption. It imports no jax.

In reading order: ``collection`` (what the command runs), ``manager`` (the scheduling process), ``scheduling`` with
``lease_table`` (its state machine, without clocks), ``worker`` and ``episodes`` (what a worker does with a lease),
``launchers`` (where workers run), ``queue_file`` (tasks), ``journal`` (ends); ``pool`` has the workers of a training
run.

Below: ``wire`` and ``wire_messages`` (what processes say to each other), ``engine_socket`` (an engine in another
process), ``routing`` (which of several engines), ``admission`` (how many episodes at a time), ``event_loop``,
``monitoring`` and ``simulated`` (an engine that only takes its time).
"""
