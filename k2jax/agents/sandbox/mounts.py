"""Which paths of the host a sandbox in namespaces shows, and where: checked before anything is mounted."""

from __future__ import annotations

import os

from k2jax.agents.sandbox.arguments import HOST_FOLDERS
from k2jax.agents.sandbox.types import HostPaths, MountedPath
from k2jax.errors import UserError

_NEVER = ("/", "/home", "/root", "/run", "/tmp", "/var", "/proc", "/sys", "/dev", "/etc")
"""Folders of the host that no sandbox shows whole."""
_KERNEL = ("/dev", "/proc", "/sys")
"""Folders of the host of which no sandbox shows a part."""
_OWN = ("/tmp", "/work", *_KERNEL)
"""Folders that are a sandbox's own: nothing of the host can be shown in them."""
_PROGRAMS = ("/usr", "/etc", *HOST_FOLDERS)
"""Folders where a sandbox has what it needs itself, and where no folder can be made to mount on."""


def mounts(paths: HostPaths) -> dict[str, str]:
    """Absolute paths of the host without links, by the paths inside, the outer ones before those in them.

    Raises:
        UserError: a path is not absolute or does not exist, or its place is not free.
    """
    found: dict[str, str] = {}
    for path in paths:
        source, inside = path if isinstance(path, MountedPath) else (path, path)
        if not os.path.isabs(source) or not os.path.exists(source):
            raise UserError(f"read_only must name absolute paths that exist, not {source!r}")
        if not os.path.isabs(inside) or "\0" in inside:
            raise UserError(f"read_only must show {source} at an absolute path, not {inside!r}")
        place, real = _normal(inside), os.path.realpath(source)
        if real in _NEVER or _normal(source) in _NEVER:
            raise UserError(f"no sandbox shows {source} whole; name the folders in it that it needs")
        if _within(real, _KERNEL):
            raise UserError(f"a sandbox has its own devices, processes and shared memory, not the host's {source}")
        if place in _NEVER or _within(place, _OWN):
            raise UserError(f"{source} cannot be shown at {place}, where a sandbox has its own; write() it, or move it")
        if found.setdefault(place, real) != real:
            raise UserError(f"{found[place]} and {real} cannot both be shown at {place}")
    for path in paths:
        if not isinstance(path, MountedPath):
            continue
        place = _normal(path.inside)
        outer = _outer(place, found)
        if outer and _is_file_for_file(found[place], place.removeprefix(outer), found[outer]):
            continue
        if _within(place, _PROGRAMS):
            raise UserError(f"{path.source} cannot be shown at {place}, in a folder of programs; choose another place")
        if outer:
            raise UserError(f"{path.source} cannot be shown at {path.inside}, in what {found[outer]} is shown at")
    return dict(sorted(found.items()))


def is_never_shown(folder: str) -> bool:
    """Whether no sandbox shows what lies in a folder of the host without links, because it is or holds one of those."""
    return _within(folder, _KERNEL) or any(_within(never, (folder,)) or folder == "/" for never in _NEVER)


def _normal(path: str) -> str:
    return "/" + os.path.normpath(path).lstrip("/")


def _within(path: str, folders: tuple[str, ...]) -> bool:
    return path in folders or path.startswith(tuple(f"{folder}/" for folder in folders))


def _outer(place: str, places: dict[str, str]) -> str | None:
    """The innermost of the places in which a place lies."""
    return max((other for other in places if place.startswith(f"{other}/")), key=len, default=None)


def _is_file_for_file(source: str, name: str, folder: str) -> bool:
    """Whether a file is shown in the place of another one, of a folder that is shown too."""
    replaced = folder + name
    return os.path.isfile(source) and os.path.isfile(replaced) and os.path.realpath(replaced) == replaced
