"""Preparation of a source's documents by many processes or machines, with the bytes that one process would give.

In reading order: ``cutting`` (a source as tasks), ``tokenising`` (what a task becomes, by whichever process),
``part_files`` (how it is kept until the shards are written), ``pools`` over ``task_process``, or ``ray_pool`` (who does
it), ``joining`` (the parts in order, as if one process had read the source), ``progress_lines`` (how far it is).
"""
