"""The built-in tasks, a folder for each family: dataset, verifier, oracle. Found by name; agents never import them.

In reading order: ``catalog`` (all names), ``characters`` (the shortest family), ``tool_use`` (with tools), ``code``
(a verifier with a sandbox), ``swe`` (a repository), ``pictures`` (with images), and the others as they are needed.

Shared: ``generated`` (distinct tasks that are drawn), ``record_fields`` (problems of files), ``answer_line``,
``item_f1`` over ``markdown_table`` (verifiers), ``oracles``. Commands: ``oracle_check`` (plays a dataset with its
oracle), ``demonstrate`` (writes conversations for fine-tuning).
"""
