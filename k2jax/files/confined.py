"""Paths that data name, confined to a folder that the user has chosen: links are followed before the comparison."""

from __future__ import annotations

import os

from k2jax.errors import UserError, abbreviate

LONGEST_PATH = 4096
"""Characters of a path."""


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
