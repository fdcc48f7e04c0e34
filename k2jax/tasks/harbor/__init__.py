"""Tasks in folders of Harbor's format: an instruction, an image, and a script that judges the agent's own container.

Modules: ``task_folder`` (the format), ``dataset``, ``verifier``. The environment is
``k2jax.agents.environments.container``.
"""
