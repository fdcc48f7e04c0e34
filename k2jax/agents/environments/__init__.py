"""Where agents act: each environment is a class derived from ``k2jax.agents.Environment``.

In reading order: ``single_turn`` (one answer ends it), ``tools`` (calls and their results, in a sandbox where a tool
needs one), ``files`` (a folder of files, and what the agent leaves of it), ``repository`` with ``git_history``,
``git_objects``, ``repository_program`` (a git repository up to its base commit, and the agent's patch) and
``repository_tests`` (its tests), ``image_repository`` with ``image_scripts`` (a repository that is on its image),
``container`` (judged where the agent has worked).

Environments in other processes: ``remote`` (the client), ``remote_messages`` and ``remote_servers`` (what is said, and
to whom), ``serve`` (the command), ``serve_offer`` (what clients may name), ``serve_connections`` (bounds of bytes).
"""
