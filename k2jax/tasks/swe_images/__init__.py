"""Issues of git repositories on images, judged by the test commands of their rows (SWE-bench, SWE-rebench, and others).

Modules, in reading order: ``row`` (the published fields), ``dataset``, ``row_commands``, ``log_parsers`` with
``python_logs``, ``javascript_logs`` and ``compiled_logs``, ``verifier``. The environment is
``k2jax.agents.environments.image_repository``.
"""
