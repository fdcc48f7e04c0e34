"""This program's own Python and its installed packages, for commands inside a sandbox."""

from __future__ import annotations

import functools
from importlib import metadata
import os
import platform
import sys
from typing import NamedTuple

from k2jax.agents.sandbox.types import MountedPath
from k2jax.errors import UserError, abbreviate

HOST_USR = "/k2jax/usr"
"""Where a sandbox on an image has the host's ``/usr``."""
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_NO_MODULES = (".dist-info", ".egg-info", ".pth")


class HostPython(NamedTuple):
    """A Python interpreter of the host without its installed packages.

    Attributes:
        executable: its path; start it with ``-I -S`` so that nothing in the sandbox's folder is imported unasked.
        read_only: what ``SandboxSpec.read_only`` must name for it.
    """

    executable: str
    read_only: tuple[str, ...]


def host_python() -> HostPython:
    """The interpreter that runs this program, outside its virtual environment."""
    executable = os.path.realpath(sys.executable)
    prefix = os.path.realpath(sys.base_prefix)
    return HostPython(executable, () if f"{prefix}/".startswith("/usr/") else (prefix,))


def loaded(program: str, usr: str = HOST_USR) -> list[str]:
    """A command that starts a program of the host on any image, also one with another C library.

    Its loader and libraries are those of the host's ``/usr``.

    Args:
        program: its path on the host, without links; below ``/usr``, or shown at its own place.
        usr: where the sandbox shows the host's ``/usr``.

    Raises:
        UserError: see ``system_loader``.
    """
    loader = os.path.realpath(system_loader())
    own = os.path.join(os.path.dirname(os.path.dirname(program)), "lib")  # before the system's Python of this version
    folders = dict.fromkeys((own, os.path.dirname(loader), "/usr/lib64", "/usr/lib"))
    there = [_there(path, usr) for path in (loader, *folders, program)]
    return [there[0], "--library-path", ":".join(there[1:-1]), there[-1]]


def system_loader() -> str:
    """Path at which programs of this machine name their loader.

    Raises:
        UserError: this machine keeps its libraries elsewhere than in ``/usr``.
    """
    loader = _LOADERS.get(platform.machine(), "")
    real = os.path.realpath(loader)
    if not real.startswith("/usr/") or not os.path.isfile(real):
        raise UserError("agents on images need a machine whose C library lies in /usr, as of Debian 12 or Ubuntu 22.04")
    return loader


def _there(path: str, usr: str) -> str:
    return usr + path.removeprefix("/usr") if path.startswith("/usr/") else path


class MovedPython(NamedTuple):
    """The Python of ``host_python`` in a folder of its own.

    Attributes:
        argv: its command.
        shown: what the folder must show of the host, by names in it.
    """

    argv: list[str]
    shown: dict[str, str]


def moved_python(folder: str) -> MovedPython:
    """How this program's own Python starts where a sandbox shows it in a folder, on any image.

    Raises:
        UserError: see ``loaded``.
    """
    python, shown = host_python(), {"usr": "/usr"}
    loader, option, libraries, program = loaded(python.executable, f"{folder}/usr")
    for prefix in python.read_only:
        shown["python"] = str(prefix)
        program = f"{folder}/python{python.executable.removeprefix(str(prefix))}"
        libraries = f"{folder}/python/lib:{libraries}"  # before the system's Python of this version
    return MovedPython([loader, option, libraries, program], shown)


class HostPackages(NamedTuple):
    """Installed packages of this program.

    They are shown in ``/packages``, because an environment may lie where a sandbox has its own files, as in ``/tmp``.
    What is installed beside them is not shown, unless it lies in the interpreter's own folder or in ``/usr``, as
    without a virtual environment.

    Attributes:
        folders: what ``sys.path`` must name inside.
        read_only: what ``SandboxSpec.read_only`` must name for them.
    """

    folders: tuple[str, ...]
    read_only: tuple[MountedPath, ...]


@functools.cache
def host_packages(names: tuple[str, ...]) -> HostPackages:
    """The modules and libraries of packages; what they require must be named too.

    Args:
        names: as pip has them, such as ``pillow``.

    Raises:
        UserError: a package is not installed, or is installed without a list of its files, as an editable one is.
    """
    folders: dict[str, str] = {}
    shown: dict[MountedPath, None] = {}
    for name in names:
        try:
            installed = metadata.distribution(name)
        except (metadata.PackageNotFoundError, ValueError):
            raise UserError(f"there is no package {abbreviate(name)} here for sandboxes to show; install it") from None
        files = installed.files if installed.read_text("RECORD") else None
        tops = sorted({file.parts[0] for file in files or ()} - {"..", "__pycache__"})
        tops = [top for top in tops if not top.endswith(_NO_MODULES) and not top.startswith("__editable__")]
        if not tops:
            raise UserError(f"the package {name!r} has no list of its files; install it again, by pip")
        folder = os.path.realpath(installed.locate_file(""))
        inside = folders.setdefault(folder, f"/packages/{len(folders)}")
        shown |= dict.fromkeys(MountedPath(os.path.join(folder, top), f"{inside}/{top}") for top in tops)
    return HostPackages(tuple(folders.values()), tuple(shown))
