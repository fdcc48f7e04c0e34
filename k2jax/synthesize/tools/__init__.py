"""The repository of tools (Kimi K2, section 3.1.1, its first step).

In reading order: ``repository_pipeline`` (the stages), ``domain_worlds`` (domains and their first tools), ``evolution``
(rounds of breadth and depth), ``mcp_servers`` (tools of others), ``distinct_domains`` and ``near_duplicates`` with
``tool_forms`` (what a tool does) and ``tool_objects`` (what it is about), ``tool_store`` (on disk) and
``tool_picture``. ``evolution_program`` plays the writer with ``record_kinds``, ``refinements`` and ``evolution_words``.
"""
