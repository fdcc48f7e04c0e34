"""The backends of sandboxes, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import get_args

from k2jax.agents.sandbox.types import SandboxBackend
from k2jax.config.schema import SandboxKind
from k2jax.errors import UserError, nearest

BACKENDS: tuple[str, ...] = get_args(SandboxKind)
"""All names; each is that of a module beside this one, which has the class ``NameBackend``."""

REMOTE: tuple[str, ...] = ("e2b", "kubernetes")
"""Those whose sandboxes are on other machines."""


def backend_class(name: str) -> Callable[..., SandboxBackend]:
    """The class of a backend, whose module is imported now.

    Raises:
        UserError: there is no such backend.
    """
    if name not in BACKENDS:
        raise UserError(f"no sandbox backend {name!r}{nearest(name, list(BACKENDS))}")
    return getattr(import_module(f".{name}", __package__), f"{name.title()}Backend")


def make_backend(name: str = "bubblewrap", *, images: str = "") -> SandboxBackend:
    """A backend by its name; none stands in for another.

    Args:
        name: of the backend.
        images: what specs may choose their images from, because they may be written by others: for ``bubblewrap`` and
            ``nsjail`` the folder of unpacked root file systems, for ``kubernetes`` and ``e2b`` how the names begin that
            are allowed, such as ``registry.example/project/``. Empty refuses every spec with an image.

    Raises:
        UserError: there is no such backend, or this machine lacks what it needs.
    """
    return backend_class(name)(images=images)
