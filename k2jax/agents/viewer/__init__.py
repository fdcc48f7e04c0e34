"""HTML pages of trajectories, which load nothing from outside and escape everything.

In reading order: ``viewer`` (which pages there are), ``episode_page`` with ``turn_table``, ``token_boxes`` and
``tree_picture``, the swarm of an episode (``swarm_section``, ``swarm_picture``, ``swarm_schedule``), ``verdict_page``,
``curves``; ``markup`` and ``page_style`` are below all of them.
"""
