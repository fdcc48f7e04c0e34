"""The root of a sandbox on an image: an overlay of the image and of files of its own, which all its commands share.

It is mounted once for each sandbox, since two overlays on the same files are undefined, and before anything has run on
it. Places where a sandbox shows other files are mount points from then on, and so are the folders above them: what runs
on the overlay may write to all of it, and could otherwise put a link in the way of the next command.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import errno
import os
from pathlib import Path
from typing import NamedTuple

from k2jax.agents.sandbox.kernel_mounts import BIND, NO_DEVICES, NO_SETUID, RECURSIVE, make_read_only, mount
from k2jax.files.confined import path_in_root

ROOT, UPPER, _SCRATCH = "root", "upper", "scratch"
LAYERS = {ROOT: 0o755, UPPER: 0o755, _SCRATCH: 0o755}
"""Folders of an overlay among a sandbox's own files, and their modes: what programs see, what they have written, and
what the kernel needs."""
OWN_PLACES = {"/work": "work", "/tmp": "tmp", "/dev/shm": "shm"}
"""Folders that a program can write to, and their names among a sandbox's own files."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OVER = ("dev", "proc", "tmp", "work")
"""Folders at the top where a sandbox has its own, in the place of whatever the image has there."""
OWN_FILES = len(LAYERS) + 1 + len(_OVER) + 32
"""Files of an overlay that no program has written; some are for folders above what is shown."""


class ImageRoot(NamedTuple):
    """What the root of a sandbox on an image shows.

    Attributes:
        image: folder of the unpacked root file system, absolute and without links.
        shown: files and folders of the host by their places inside, read-only.
        workdir: folder inside that is made where it is missing.
        owner: user and group of what is made.
    """

    image: str
    shown: Mapping[str, Path]
    workdir: str
    owner: int


def mount_image(box: Path, root: ImageRoot) -> None:
    """Mounts the root, in the mount namespace in which the folders ``LAYERS`` lie in ``box``.

    Raises:
        OSError: the kernel allows no such overlay, there is no room, or a place cannot be made.
    """
    for name in _OVER:
        (box / UPPER / name).mkdir(exist_ok=True)
    merged = box / ROOT
    _overlay(root.image, box)
    for path in _make_folders(_workdir(box, merged, root.workdir)):
        os.chown(path, root.owner, root.owner)
    pinned = {merged}
    for inside, source in root.shown.items():
        place = path_in_root(merged, inside)
        if place != merged / inside.lstrip("/"):  # the link could be replaced, and not the place to which it leads
            raise OSError(errno.ELOOP, f"{inside} is behind a link of the image; show it at another place")
        _make_folders(place if source.is_dir() else place.parent)
        if not place.exists():
            place.touch()
        for above in (path for path in reversed(place.parents) if merged in path.parents and path not in pinned):
            mount(above, above, None, BIND)
            pinned.add(above)
        pinned.add(place)
        mount(source, place, None, BIND | RECURSIVE)
        make_read_only(place)


def _overlay(image: str, box: Path) -> None:
    kinds = {"lowerdir": image, "upperdir": box / UPPER, "workdir": box / _SCRATCH}
    with contextlib.ExitStack() as stack:  # by descriptors: a path may hold characters that separate options
        opened = {kind: os.open(path, _FOLDER) for kind, path in kinds.items()}
        for descriptor in opened.values():
            stack.callback(os.close, descriptor)
        layers = [f"{kind}=/proc/self/fd/{descriptor}" for kind, descriptor in opened.items()]
        _mount_overlay(box / ROOT, ",".join([*layers, "userxattr"]))


def _mount_overlay(target: Path, options: str) -> None:
    try:
        mount("overlay", target, "overlay", NO_SETUID | NO_DEVICES, options)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EINVAL, errno.ENODEV):
            message = f"this kernel allows no overlay in a sandbox ({error.strerror}); images need Linux 6.6 or newer"
            raise OSError(error.errno, message) from None
        raise


def _workdir(box: Path, merged: Path, workdir: str) -> Path:
    """Where the folder of commands lies, which may be in one of the sandbox's own.

    Raises:
        OSError: it is behind too many links.
    """
    place = path_in_root(merged, workdir)
    for inside, name in OWN_PLACES.items():
        own = merged / inside.lstrip("/")
        if place == own or own in place.parents:
            return path_in_root(box / name, str(place.relative_to(own)))
    return place


def _make_folders(folder: Path) -> list[Path]:
    """Makes a folder and those above it; returns those that were missing."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir()
    return missing
