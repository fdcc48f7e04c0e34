"""The root file system of an image while it is unpacked: its links lead to where they would lead in a container.

Entries of layers are written by whoever made the image. A path is followed here, component by component, and never by
the kernel, so that no link leads out of the folder, which nobody else may write to meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

_MOST_LINKS = 40
"""Links that are followed in one path, as in Linux."""
_DEEPEST = 256
"""Folders in each other."""
_FOLDER_MODE = 0o755
_KEPT_MODES = 0o1777  # set-user-id programs have no power in a sandbox


class ImageTree:
    """A folder that takes the files of an image.

    Args:
        root: an empty folder, by its real path.
        owner: user and group of all files; None for this process's own.
    """

    def __init__(self, root: str, owner: int | None = None):
        self.root, self._owner = root, owner
        self._folders: dict[tuple[str, ...], str] = {}  # by path in the image, while no folder and no link is removed
        self._times: dict[str, int] = {}

    def parent(self, parts: tuple[str, ...], *, make: bool) -> str | None:
        """The folder of the host in which the last of some components lies.

        Args:
            parts: components of a path in the image; none is empty, ``.`` or ``..``.
            make: whether missing folders are made; otherwise None stands for what is no folder.

        Raises:
            ValueError: no folder can be made there, or there are too many links.
        """
        above = parts[:-1]
        if above in self._folders:
            return self._folders[above]
        found = self._follow(above, make)
        if found is not None:
            self._folders[above] = found
        return found

    def add_folder(self, path: str, mode: int, seconds: float) -> None:
        """Makes a folder, or changes one that is there; whatever else is there is removed."""
        self._check_depth(path)
        if _kind(path) != "folder":
            self.remove(path)
            os.mkdir(path, 0o700)
        self._finish(path, mode | 0o700, None)
        self._times[path] = _nanoseconds(seconds)

    def add_link(self, path: str, target: str, seconds: float) -> None:
        """Makes a symbolic link, with any target."""
        self.remove(path)
        os.symlink(target, path)
        self._finish(path, None, seconds)

    def add_hard_link(self, path: str, source: str) -> None:
        """Gives a file another name.

        Raises:
            ValueError: the source is no file and no link.
        """
        if _kind(source) not in ("file", "link"):
            raise ValueError("a hard link to what is no file")
        if not (_kind(path) and os.path.samestat(os.lstat(path), os.lstat(source))):
            self.remove(path)
            os.link(source, path, follow_symlinks=False)

    def new_file(self, path: str) -> int:
        """A descriptor of a new file, in the place of whatever is there."""
        self.remove(path)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def end_file(self, path: str, mode: int, seconds: float) -> None:
        """Sets a file's mode and time, when it is written."""
        self._finish(path, mode | 0o600, seconds)

    def remove(self, path: str) -> None:
        """Removes what is there, with all that is in it; links are not followed."""
        kind = _kind(path)
        if kind == "folder":
            shutil.rmtree(path)
            self._folders.clear()
            self._times = {place: at for place, at in self._times.items() if not f"{place}/".startswith(f"{path}/")}
        elif kind:
            os.unlink(path)
            if kind == "link":
                self._folders.clear()

    def finish(self) -> None:
        """Sets the times of folders, which each new entry has changed."""
        for path, at in self._times.items():
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, ns=(at, at))

    def _follow(self, parts: tuple[str, ...], make: bool) -> str | None:
        """A folder of the image on the host."""
        waiting, at, links = list(reversed(parts)), self.root, 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = at if at == self.root else os.path.dirname(at)
                continue
            path = os.path.join(at, part)
            self._check_depth(path)
            kind = _kind(path)
            if kind == "link":
                links += 1
                if links > _MOST_LINKS:
                    raise ValueError("too many links")
                target = os.readlink(path)
                at = self.root if target.startswith("/") else at
                waiting += reversed(target.split("/"))
            elif kind == "folder":
                at = path
            elif not make:
                return None
            elif kind:
                raise ValueError("a file where a folder is needed")
            else:
                os.mkdir(path, 0o700)
                self._finish(path, _FOLDER_MODE, None)
                at = path
        return at

    def _check_depth(self, path: str) -> None:
        """Raises ValueError for what lies too deep: deleting it would recurse as deep."""
        if path.count("/") - self.root.count("/") > _DEEPEST:
            raise ValueError("too many folders in each other")

    def _finish(self, path: str, mode: int | None, seconds: float | None) -> None:
        if self._owner is not None:
            os.chown(path, self._owner, self._owner, follow_symlinks=False)
        if mode is not None:
            os.chmod(path, mode & _KEPT_MODES)
        if seconds is not None:
            at = _nanoseconds(seconds)
            os.utime(path, ns=(at, at), follow_symlinks=False)


def _kind(path: str) -> str:
    """``folder``, ``link`` or ``file``; empty where there is nothing."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return ""
    return "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


def _nanoseconds(seconds: float) -> int:
    """A time that file systems can store."""
    return int(min(max(seconds, 0.0), 2**33) * 1e9)
