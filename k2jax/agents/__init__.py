"""What an agent does: tasks, environments, tools, verifiers, and all that runs their episodes. It imports no jax.

In reading order: ``task`` (what is asked, and its budget), ``environment`` (where an agent acts), ``scaffold`` and
``chat_scaffold`` (how a model becomes an agent), ``episode`` (one episode, token by token), ``verifier``, ``rewards``
and ``scorer`` (what an answer is worth), ``verdicts`` (the log of verdicts, written before they are used), ``registry``
(everything by its name), ``wiring`` (what a config chooses of it).

Below: ``environments``, ``toolsets``, ``judges``, ``verifier_pool``, ``sandbox``; ``api``, ``web`` and ``gateway`` for
agents in programs of their own; ``collect`` runs many episodes in many processes; ``viewer`` shows them.
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
