"""Histories of git repositories of data, packed up to a commit; nothing that a repository says is run or obeyed.

Git works in a directory of this program's own, with a configuration and an environment of its own, in which nothing of
the repository is visible but its objects (see git_objects.py): no configuration, hook, attribute, reference, index,
replacement, bitmap, commit graph or server. Its time, memory and output are limited.

Packs are kept in unnamed files, and are in memory only on their way into a sandbox.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
import contextlib
import os
from pathlib import Path
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from typing import IO
import weakref

from k2jax.agents.environments.git_objects import ID, GitObjects, find_objects
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.errors import UserError, abbreviate
from k2jax.files.confined import confined

LARGEST_PACK = 256 << 20
"""Bytes of a history."""
KEPT = 512 << 20
"""Bytes of histories that are kept in files."""
TIMEOUT = 120.0
"""Wall time of packing a history [s]."""
_MOST_KEPT = 64
_MEMORY = 2 << 30
_PATIENCE = 600.0
"""How long a history is waited for while others are packed [s]."""
_CONFIG = """[core]
	repositoryFormatVersion = 0
	bare = true
	hooksPath = /dev/null
	packedGitWindowSize = 16m
	packedGitLimit = 256m
	bigFileThreshold = 16m
	deltaBaseCacheLimit = 64m
[pack]
	threads = 2
	windowMemory = 64m
	deltaCacheSize = 64m
[protocol]
	allow = never
"""
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
"""All variables of git but its home."""


class Pack:
    """A git pack in an unnamed file, which is deleted with the last reference to this object.

    Attributes:
        size: its bytes.
        shallow: ids of commits without their parents, of which the pack may hold some.
    """

    def __init__(self, descriptor: int, size: int, shallow: tuple[str, ...]):
        """Takes over the descriptor of the file."""
        self.size, self.shallow, self._descriptor = size, shallow, descriptor
        weakref.finalize(self, os.close, descriptor)

    def after(self, head: bytes) -> bytearray:
        """The pack behind other bytes, with no further copy of it in memory."""
        whole = bytearray(len(head) + self.size)
        whole[: len(head)] = head
        rest, place = memoryview(whole)[len(head) :], 0
        while place < self.size and (count := os.preadv(self._descriptor, [rest[place:]], place)):
            place += count
        if place < self.size:
            raise EnvironmentFailedError("the file of a git history has become shorter")
        return whole


class Packs:
    """The histories that were asked for last, within ``KEPT`` bytes; for several threads."""

    def __init__(self):
        """Keeps nothing yet."""
        self._packs: OrderedDict[tuple[str, str, str], Pack] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, repository: str, base: str, folder: str) -> Pack:
        """See ``packed_history``."""
        key = (confined(repository, folder, "repository"), checked_id(base), os.path.realpath(folder))
        with self._lock:
            pack = self._packs.get(key)
        if pack is None:
            pack = _pack(find_objects(key[0], folder), base, key[0])
        with self._lock:
            self._packs[key] = pack
            self._packs.move_to_end(key)
            while len(self._packs) > _MOST_KEPT or sum(each.size for each in self._packs.values()) > KEPT:
                self._packs.popitem(last=False)
        return pack


_packs = Packs()
_threads = ThreadPoolExecutor(2, thread_name_prefix="k2jax-git")


async def packed_history(repository: str, base: str, folder: str) -> Pack:
    """A git pack of the commits up to a base, and of nothing else; made in a thread.

    Args:
        repository: a path below ``folder``; from a record or from another machine, so it may be anything.
        base: id of a commit, the same.
        folder: what the user has chosen.

    Raises:
        UserError: there is no such repository or commit there, its history is too large, or no git.
        EnvironmentFailedError: it took too long.
    """
    made = asyncio.get_running_loop().run_in_executor(_threads, _packs.find, repository, base, folder)
    try:
        return await asyncio.wait_for(made, _PATIENCE)
    except TimeoutError:
        raise EnvironmentFailedError(f"the history of {repository} was not packed within {_PATIENCE:g} s") from None


def checked_id(base: str) -> str:
    """A full id of a commit.

    Raises:
        UserError: it is something else.
    """
    if not ID.fullmatch(base):
        more = "; repositories of SHA-256 are not supported" if len(base) == 64 else ""
        raise UserError(
            f"a base commit must be a full id of 40 digits and letters a to f, not {abbreviate(base)}{more}"
        )
    return base


def _pack(objects: GitObjects, base: str, repository: str) -> Pack:
    git = shutil.which("git")
    if git is None:
        raise UserError("tasks in repositories need git: apt-get install git")
    with tempfile.TemporaryDirectory(prefix="k2jax-git-") as folder, contextlib.ExitStack() as stack:
        _make_directory(Path(folder), objects)
        pack, errors = (stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(2))
        code = _run([git, "--git-dir=git", "pack-objects", "--revs", "--stdout", "-q"], folder, base, pack, errors)
        size = os.fstat(pack.fileno()).st_size
        if size >= LARGEST_PACK or code == -signal.SIGXFSZ:
            raise UserError(
                f"the history of {repository} up to {base} has more than {LARGEST_PACK >> 20} MiB; "
                "name a shallow clone (git clone --depth or --shallow-since)"
            )
        if code:
            reason = _last_line(errors.fileno()) or f"git ended with code {code}"
            more = "; it is a partial clone: clone it without --filter" if objects.partial else ""
            raise UserError(f"cannot read the commit {base} of {repository}: {abbreviate(reason)}{more}")
        return Pack(os.dup(pack.fileno()), size, objects.shallow)


def _make_directory(folder: Path, objects: GitObjects) -> None:
    """A git directory ``git`` that sees objects and nothing else, through links to single files and fan-out folders."""
    for name in ("git/refs", "git/objects/info"):
        (folder / name).mkdir(parents=True)
    (folder / "git/HEAD").write_text("ref: refs/heads/none\n")
    (folder / "git/config").write_text(_CONFIG)
    stores = [f"store{number}" for number in range(len(objects.folders))]
    (folder / "git/objects/info/alternates").write_text("".join(f"../../{store}\n" for store in stores))
    if objects.shallow:
        (folder / "git/shallow").write_text("".join(f"{commit}\n" for commit in objects.shallow))
    for store, links in zip(stores, objects.folders, strict=True):
        (folder / store / "pack").mkdir(parents=True)
        for name, path in links.items():
            (folder / store / name).symlink_to(path)


def _run(command: list[str], folder: str, base: str, output: IO[bytes], errors: IO[bytes]) -> int:
    """The exit code of git, whose outputs are the files given; it has ended within ``TIMEOUT``."""
    variables = {**_ENVIRONMENT, "HOME": folder}
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=output, stderr=errors
    ) as process:
        try:
            _limit(process.pid)
            process.communicate(f"{base}^{{commit}}\n".encode(), TIMEOUT)
        except subprocess.TimeoutExpired:
            raise EnvironmentFailedError(f"packing a git history took more than {TIMEOUT:g} s") from None
        finally:
            process.kill()  # git starts no other program here; nothing happens to one that has ended
    return process.returncode


def _limit(pid: int) -> None:
    limits = {"AS": _MEMORY, "FSIZE": LARGEST_PACK, "CORE": 0, "CPU": 1 + int(2 * TIMEOUT)}
    with contextlib.suppress(ProcessLookupError):
        for name, limit in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            most = resource.prlimit(pid, kind)[1]
            limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.prlimit(pid, kind, (limit, limit))


def _last_line(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    lines = os.pread(descriptor, 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
