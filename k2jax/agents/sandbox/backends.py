"""The backends of sandboxes, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, get_args

from k2jax.agents.options import split_options
from k2jax.agents.sandbox.types import SandboxBackend
from k2jax.config.schema import SandboxKind
from k2jax.errors import UserError, abbreviate, nearest

BACKENDS: tuple[str, ...] = get_args(SandboxKind)
"""All names; each is that of a module beside this one, which has the class ``NameBackend``."""

NAMESPACES: tuple[str, ...] = ("bubblewrap", "nsjail")
"""Those of this machine's namespaces, whose sandboxes can reach hosts through a proxy of this program."""

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


def backend_options(text: str) -> tuple[str, Any]:
    """The name of a backend and its options, such as ``kubernetes namespace=agents cpus=2``.

    Returns:
        The name, and a ``PodOptions`` or ``E2BOptions``; None where there are none.

    Raises:
        UserError: there is no such backend or option.
    """
    name, words = split_options(text, "sandbox backend")
    maker = getattr(backend_class(name), "options_of", None)
    if maker is None and words:
        raise UserError(f"the sandbox backend {name} has no options; leave {abbreviate(' '.join(words))} out")
    return name, maker(words) if maker is not None and words else None


def make_backend(text: str = "bubblewrap", *, images: str = "", hosts: Sequence[str] = ()) -> SandboxBackend:
    """A backend by its name; none stands in for another.

    Args:
        text: name of the backend, with options behind it; see ``backend_options``.
        images: what specs may choose their images from, because they may be written by others: for ``bubblewrap`` and
            ``nsjail`` the folder of unpacked root file systems, for ``kubernetes`` and ``e2b`` how the names begin that
            are allowed, such as ``registry.example/project/``. Empty refuses every spec with an image.
        hosts: what specs may choose their hosts from, for ``bubblewrap`` and ``nsjail``; see ``AllowList.of_user``.

    Raises:
        UserError: there is no such backend, or this machine lacks what it needs.
    """
    name, options = backend_options(text)
    made = backend_class(name)
    if hosts and name not in NAMESPACES:
        raise UserError(f"the sandbox backend {name} has no proxy to reach {abbreviate(hosts[0])}; choose bubblewrap")
    if name in NAMESPACES:
        return made(images=images, hosts=hosts)
    return made(images=images) if options is None else made(options, images=images)
