"""What an agent does: tasks, environments, tools, verifiers, and all that runs their episodes. It imports no jax.

In reading order: ``task`` (what is asked, its budget, and what a config chooses of it), ``environment`` (where an agent
acts), ``episode`` with ``episode_key``, ``spawning`` and ``roles`` (one episode, token by token, and who answers),
``verifier``, ``rewards`` and ``scorer`` (what an answer is worth), ``verdicts`` (their log, written before they are
used), ``registry`` and ``options`` (everything by its name), ``dataset`` and ``mixture`` (the tasks of a config).

Below: ``environments``, ``toolsets``, ``scaffolds``, ``judges``, ``verifier_pool``, ``sandbox``, ``images``,
``egress``; ``api``, ``web``, ``gateway``, ``harness`` for other programs; ``collect`` runs many, ``viewer`` shows them.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "Budget": "task",
    "Dataset": "dataset",
    "Environment": "environment",
    "Observation": "environment",
    "Step": "environment",
    "Task": "task",
    "Verifier": "verifier",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is used: the spawner of sandboxes starts with the standard library alone."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
