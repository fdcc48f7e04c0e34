"""The backends of sandboxes, by name."""

from __future__ import annotations

from collections.abc import Callable

from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox.e2b import E2BBackend
from k2jax.agents.sandbox.kubernetes import KubernetesBackend
from k2jax.agents.sandbox.nsjail import NsjailBackend
from k2jax.agents.sandbox.types import SandboxBackend
from k2jax.agents.sandbox.unsafe import UnsafeBackend
from k2jax.errors import UserError, nearest

BACKENDS: dict[str, Callable[..., SandboxBackend]] = {
    "bubblewrap": BubblewrapBackend,
    "nsjail": NsjailBackend,
    "kubernetes": KubernetesBackend,
    "e2b": E2BBackend,
    "unsafe": UnsafeBackend,
}


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
    if name not in BACKENDS:
        raise UserError(f"no sandbox backend {name!r}{nearest(name, list(BACKENDS))}")
    return BACKENDS[name](images=images)
