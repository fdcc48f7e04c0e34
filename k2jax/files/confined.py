"""Paths that data name, confined to a folder that the user has chosen: links are followed before the comparison."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from k2jax.errors import UserError, abbreviate

LONGEST_PATH = 4096
"""Characters of a path."""
_MOST_LINKS = 40
"""Links that are followed in one path, as in Linux."""


def confined(path: str, folder: str | os.PathLike[str], what: str) -> str:
    """Returns the real path of something that data name below a folder.

    The result has no symbolic link in it. Whoever can change the folder while it is used can still put a link in its
    place; folders of data must belong to the user.

    Args:
        path: relative to ``folder``, or an absolute path in it; from a record, so it may be anything.
        folder: what the user has chosen.
        what: what messages call the path, such as ``repo of record 3``.

    Returns:
        The real path, which exists and lies strictly below the real path of ``folder``.

    Raises:
        UserError: it is no path, does not exist, is the folder itself or leads out of it.
    """
    root = os.path.realpath(os.path.expanduser(folder))
    if not path or "\0" in path or len(path) > LONGEST_PATH:
        raise UserError(f"{what} must be the path of something below {root}, not {abbreviate(path)}")
    try:
        real = os.path.realpath(os.path.join(root, path), strict=True)
    except (OSError, ValueError):
        raise UserError(f"{what} is {abbreviate(path)}, which does not exist below {root}") from None
    if not is_below(real, root):
        raise UserError(f"{what} is {abbreviate(path)}, which leads out of {root}; put it there, or choose that folder")
    return real


def is_below(path: str, folder: str) -> bool:
    """Whether a path without links lies strictly below a folder without links."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def path_in_root(root: Path, path: str) -> Path:
    """Where a path leads in a root file system that lies in a folder, whose links are followed as they are inside.

    Args:
        root: the folder, by its real path; nobody else may write to it meanwhile.
        path: inside; what is missing of it is taken as it stands.

    Raises:
        OSError: there are too many links.
    """
    waiting, at, links = list(reversed(path.split("/"))), root, 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            at = at if at == root else at.parent
        elif part not in ("", "."):
            if not (at / part).is_symlink():
                at = at / part
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(at / part)
            at = root if target.startswith("/") else at
            waiting += reversed(target.split("/"))
    return at
