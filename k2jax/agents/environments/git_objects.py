"""Where a git repository of data keeps its objects: found without git, and nowhere but below a chosen folder.

A repository obeys its own files: its configuration names commands, its alternates and links name other repositories.
None of that is obeyed here. What counts is packs, their indices, loose objects and the list of a shallow clone, each a
regular file below the folder.
"""

from __future__ import annotations

from collections.abc import Iterator
import os
import re
import stat
from typing import NamedTuple

from k2jax.errors import UserError, abbreviate
from k2jax.files.confined import confined

ID = re.compile(r"[0-9a-f]{40}")
"""A full id of SHA-1."""
_FAN_OUT, _LOOSE = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{38}")
_MOST_FOLDERS = 16
"""Folders of objects that a repository borrows from each other."""
_MOST_FILES = 1_000_000
_MOST_PACK_FILES = 10_000
"""Of a folder of objects; each of them gets a link."""
_LARGEST_TEXT = 1 << 20
"""Bytes of a file that names folders or commits."""


class GitObjects(NamedTuple):
    """What git may see of a repository.

    Attributes:
        folders: for each folder of objects, real paths by their names in it, such as ``pack/x.idx`` and ``0a``.
        shallow: ids of commits without their parents.
        partial: whether the repository relies on a server for the rest of its objects.
    """

    folders: tuple[dict[str, str], ...]
    shallow: tuple[str, ...]
    partial: bool


def find_objects(repository: str, folder: str) -> GitObjects:
    """Finds the objects of a work tree with ``.git``, of a linked work tree or submodule, or of a bare repository.

    Whoever can change the folder meanwhile can change what is found; see ``confined``.

    Args:
        repository: a path below ``folder``; from a record, so it may be anything.
        folder: what the user has chosen.

    Raises:
        UserError: it is no repository, a part of it leads out of ``folder`` or is no regular file, or it has too many.
    """
    git = _git_folder(confined(repository, folder, "repository"), folder)
    common = _named(git, "commondir", folder, "") or git
    folders: dict[str, dict[str, str]] = {}
    waiting = [_folder(os.path.join(common, "objects"), folder)]
    while waiting:
        objects = waiting.pop()
        if objects in folders:
            continue
        if len(folders) == _MOST_FOLDERS:
            raise UserError(f"{repository} borrows objects from more than {_MOST_FOLDERS} folders: git repack -a -d")
        folders[objects] = dict(_links(objects, folder))
        waiting += _alternates(objects, folder)
    shallow = (_text(os.path.join(common, "shallow"), folder) or "").split()
    if not all(map(ID.fullmatch, shallow)):
        raise UserError(f"{common}/shallow is no list of ids of SHA-1; clone the repository again")
    partial = any(name.endswith(".promisor") for links in folders.values() for name in links)
    return GitObjects(tuple(_visible(links) for links in folders.values()), tuple(shallow), partial)


def _git_folder(repository: str, folder: str) -> str:
    """The git directory of a repository, which is not looked for in the folders around it."""
    inner = os.path.join(repository, ".git")
    if os.path.isdir(inner):
        return _folder(inner, folder)
    if os.path.lexists(inner):
        return _named(repository, ".git", folder, "gitdir: ")
    if os.path.isdir(os.path.join(repository, "objects")):
        return repository
    raise UserError(f"{repository} is no git repository: it has no .git, and is not bare")


def _named(parent: str, name: str, folder: str, beginning: str) -> str:
    """The folder that a file names, relative to its own; empty where there is no such file."""
    path = os.path.join(parent, name)
    text = _text(path, folder)
    if text is None:
        return ""
    if not text.startswith(beginning):
        raise UserError(f"{abbreviate(path)} does not name a folder of git; clone the repository again")
    return _folder(os.path.join(parent, text.removeprefix(beginning).rstrip("\r\n")), folder)


def _alternates(objects: str, folder: str) -> list[str]:
    """Further folders of objects that one of them names."""
    path = os.path.join(objects, "info", "alternates")
    lines = (_text(path, folder) or "").split("\n")
    return [_folder(os.path.join(objects, line), folder) for line in lines if line and not line.startswith("#")]


def _links(objects: str, folder: str) -> Iterator[tuple[str, str]]:
    """What git reads of a folder of objects, with its real paths."""
    count = 0
    for name in _names(objects):
        if name == "pack":
            pack = _folder(os.path.join(objects, name), folder)
            files = [file for file in _names(pack) if file.endswith((".pack", ".idx", ".promisor"))]
            if len(files) > _MOST_PACK_FILES:
                raise UserError(f"{pack} has more than {_MOST_PACK_FILES:,} files of packs; git repack -a -d")
            yield from ((f"pack/{file}", _file(os.path.join(pack, file), folder)) for file in files)
        elif _FAN_OUT.fullmatch(name):
            loose = _folder(os.path.join(objects, name), folder)
            files = [file for file in _names(loose) if _LOOSE.fullmatch(file)]
            for file in files:
                _file(os.path.join(loose, file), folder)
            yield name, loose
        else:
            continue
        count += len(files)
        if count > _MOST_FILES:
            raise UserError(f"{objects} has more than {_MOST_FILES:,} files; repack the repository (git gc)")


def _visible(links: dict[str, str]) -> dict[str, str]:
    """Packs with both of their files, and loose objects."""
    other = {".pack": ".idx", ".idx": ".pack"}
    pairs = {name: os.path.splitext(name) for name in links}
    return {
        name: links[name]
        for name, (stem, ending) in pairs.items()
        if not ending or (ending in other and stem + other[ending] in links)
    }


def _names(path: str) -> list[str]:
    """Names in a folder, sorted, without links followed to it."""
    names = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MOST_FILES:
                    raise UserError(
                        f"{abbreviate(path)} has more than {_MOST_FILES:,} files; repack the repository (git gc)"
                    )
    except OSError as error:
        raise UserError(f"cannot read {abbreviate(path)}: {error.strerror}") from None
    return sorted(names)


def _folder(path: str, folder: str) -> str:
    real = confined(path, folder, "a folder of the repository")
    if not os.path.isdir(real):
        raise UserError(f"{abbreviate(path)} is no folder of git; clone the repository again")
    return real


def _file(path: str, folder: str) -> str:
    """The real path of a regular file, which is not opened."""
    real = path
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            real = confined(path, folder, "a file of the repository")
            mode = os.lstat(real).st_mode
    except OSError as error:
        raise UserError(f"cannot read {abbreviate(path)}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{abbreviate(path)} is no regular file; clone the repository again")
    return real


def _text(path: str, folder: str) -> str | None:
    """The text of a small file, or None where there is none; nothing is opened that could make a reader wait."""
    if not os.path.lexists(path):
        return None
    real = _file(path, folder)
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            data = file.read(_LARGEST_TEXT + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError as error:
        raise UserError(f"cannot read {abbreviate(path)}: {error.strerror}") from None
    if len(data) > _LARGEST_TEXT:
        raise UserError(f"{abbreviate(path)} has more than {_LARGEST_TEXT:,} bytes; clone the repository again")
    if b"\0" in data:
        raise UserError(f"{abbreviate(path)} holds a null character; clone the repository again")
    return os.fsdecode(data)
