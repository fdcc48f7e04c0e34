"""Files and messages: what is written survives, and what others have written is read within bounds.

Reading order: ``atomic`` (replacement), ``array_file``, ``append_log`` (records), ``frames`` (messages of processes),
``confined`` (paths), ``whole`` (files of somebody else), ``bounded_json`` (values), ``folder_lock``, ``folder_probe``
(what a file system lacks), ``magic`` (kinds of files), ``content`` and ``readers`` with ``parquet_pages`` (corpora),
``objects`` (object stores); ``child_environment`` and ``process_tree`` (programs that are started).
"""
