"""Where a spawner keeps the files of its sandboxes: memory file systems that no other process of the host sees.

The spawner has a mount namespace of its own. Root makes only that, and its sandboxes run as the user 65534; any other
user makes a user namespace too, and the sandboxes run as that user. A sandbox's files are one tmpfs with limits on
bytes and inodes, in a mount namespace that is a copy of the spawner's with this mount beside: so what it costs to start
a command does not grow with the number of sandboxes. It ends with its last process, however the spawner ends.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from k2jax.agents.sandbox.empty_folder import empty, reset
from k2jax.agents.sandbox.kernel_mounts import (
    BIND,
    NEW_MOUNTS,
    NEW_USERS,
    NO_DEVICES,
    NO_PROGRAMS,
    NO_SETUID,
    PRIVATE,
    RECURSIVE,
    detach,
    kernel_call,
    mount,
)
from k2jax.agents.sandbox.overlay import LAYERS, OWN_FILES, ImageRoot, mount_image

NOBODY = 65534
_SUBREAPER, _DUMPABLE = 36, 4
_ETC = {
    "passwd": f"root:x:0:0::/work:/bin/sh\nsandbox:x:{NOBODY}:{NOBODY}::/work:/bin/sh\n",
    "group": f"root:x:0:\nsandbox:x:{NOBODY}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_ETC_OF_HOST = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
"""What programs in /usr need of the host's /etc; it holds no names and no keys."""
_SHARED = {"work": 0o755, "tmp": 0o1777, "shm": 0o1777}
"""Folders of a sandbox and their modes; inside they are /work, /tmp and /dev/shm."""
TERMINALS = "pts"
"""The folder of a sandbox's own pseudo-terminals; inside it is /dev/pts."""
_TERMINAL_OPTIONS = "newinstance,ptmxmode=0666,mode=620,max=32"
"""The kernel has a few thousand pseudo-terminals for all sandboxes together."""


def _copy(source: Path, target: Path) -> None:
    """Copies a file, or a folder with all that is in it; links into /usr stay links. What is missing is left out."""
    if source.is_symlink() and os.path.realpath(source).startswith("/usr/"):
        target.symlink_to(os.path.realpath(source))
    elif source.is_dir():
        target.mkdir()
        for entry in source.iterdir():
            _copy(entry, target / entry.name)
    elif source.is_file():
        target.write_bytes(source.read_bytes())


def adopt_orphans() -> None:
    """Makes this process the parent of processes below it whose own parent has ended."""
    kernel_call("prctl", _SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


class BoxFiles(NamedTuple):
    """Descriptors of a sandbox's files.

    Attributes:
        namespace: the mount namespace in which they are.
        root: their folder.
    """

    namespace: int
    root: int


def enter_mounts(namespace: int) -> None:
    """Moves this process, which has a single thread, into a mount namespace."""
    kernel_call("setns", namespace, NEW_MOUNTS)


def new_user_namespace() -> None:
    """Moves this process, which has a single thread, into a user namespace of its own, without users yet.

    Raises:
        OSError: the machine does not allow it.
    """
    kernel_call("unshare", NEW_USERS)
    kernel_call("prctl", _DUMPABLE, *map(ctypes.c_ulong, (1, 0, 0, 0)))  # else its files in /proc belong to root


def map_one_user(user: int, outside: int, group: int, group_outside: int) -> None:
    """Maps a user and a group of this process's new user namespace to those that it had outside."""
    maps = {"uid_map": f"{user} {outside} 1", "gid_map": f"{group} {group_outside} 1"}
    for name, text in ({"setgroups": "deny"} | maps).items():
        Path("/proc/self", name).write_text(text)


class SandboxStage:
    """The folder of all sandboxes of one spawner.

    Attributes:
        path: an empty folder of the host, where the spawner alone sees the files.
        user: the host's user and group of processes in sandboxes; None where they stay this process's own.
    """

    def __init__(self, path: Path):
        """Enters namespaces of its own and mounts ``path``; only for a process with a single thread.

        Raises:
            OSError: the machine does not allow it.
        """
        self.path = path
        self.user = NOBODY if os.geteuid() == 0 else None
        self._visible: dict[str, Path] = {}
        self._hidden = False
        if self.user is None:
            user, group = os.geteuid(), os.getegid()
            new_user_namespace()
            map_one_user(0, user, 0, group)
        kernel_call("unshare", NEW_MOUNTS)
        mount("none", Path("/"), None, RECURSIVE | PRIVATE)
        mount("tmpfs", path, "tmpfs", NO_SETUID | NO_DEVICES, "mode=0755,size=16m")
        for folder in ("etc", "boxes", "visible"):
            (path / folder).mkdir()
        for name, text in _ETC.items():
            (path / "etc" / name).write_text(text)
        for name in _ETC_OF_HOST:
            _copy(Path("/etc", name), path / "etc" / name)
        self._namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def forget(self, folder: str) -> None:
        """Unmounts a folder of the host and all below it where this process alone sees that, if it may.

        What isolates reads the whole list of mounts for each of those that it makes, so a short list is quick.
        """
        with contextlib.suppress(OSError):  # the mounts that a user namespace was made with are locked
            detach(Path(folder))

    def visible(self, source: str) -> Path:
        """A path below ``path`` at which the sandboxes' user reaches a file or folder of the host.

        Folders above ``source``, an absolute path, may be closed to that user.

        Raises:
            OSError: it cannot be shown.
        """
        if source not in self._visible:
            target = self.path / "visible" / str(len(self._visible))
            if os.path.isdir(source):
                target.mkdir()
            else:
                target.touch()
            mount(source, target, None, BIND | RECURSIVE)
            self._visible[source] = target
        return self._visible[source]

    def hide_mount_points(self) -> None:
        """Gives nsjail the folders that it mounts on, where the host does not see them."""
        if self._hidden:
            return
        top = Path("/run/user") if os.path.isdir("/run/user") else Path("/run")
        mount("tmpfs", top, "tmpfs", NO_SETUID | NO_DEVICES, "mode=0755,size=1m")
        folder = Path(f"/run/user/{NOBODY}/nsjail")
        for name in ("root", "tmp"):
            (folder / name).mkdir(parents=True)
        for path in (folder.parent, folder, folder / "root", folder / "tmp"):
            os.chown(path, self.user or 0, self.user or 0)
        self._hidden = True

    def make_box(self, box: Path, *, disk: int, files: int, on_image: bool) -> BoxFiles:
        """Mounts a new tmpfs for one sandbox, with its folders ``work``, ``tmp``, ``shm`` and ``pts``.

        What it shows of the host must have been made visible before.

        Args:
            box: a folder that is not there yet.
            disk: bytes that its files may have.
            files: how many there may be.
            on_image: whether it has the folders of an overlay, too; see ``mount_root``.

        Raises:
            OSError: the kernel does not allow it.
        """
        box.mkdir()
        kernel_call("unshare", NEW_MOUNTS)  # a copy, in which this process is until it has made the files
        try:
            owner = self.user or 0
            own = 2 + len(_SHARED) + (OWN_FILES if on_image else 0)
            options = f"mode=0755,size={disk},nr_inodes={files + own},uid={owner},gid={owner}"
            mount("tmpfs", box, "tmpfs", NO_SETUID | NO_DEVICES, options)
            folders = _SHARED | (LAYERS if on_image else {})
            for folder, mode in folders.items():
                (box / folder).mkdir()
                os.chown(box / folder, owner, owner)
                (box / folder).chmod(mode)
            (box / TERMINALS).mkdir()
            mount("devpts", box / TERMINALS, "devpts", NO_SETUID | NO_PROGRAMS, _TERMINAL_OPTIONS)
            root = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return BoxFiles(os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), root)
            except OSError:
                os.close(root)
                raise
        finally:
            enter_mounts(self._namespace)

    def mount_root(self, box: Path, namespace: int, root: ImageRoot) -> None:
        """Mounts the root of a sandbox on an image, in the mount namespace of its files, before anything runs on it.

        Raises:
            OSError: the kernel does not allow it, or there is no room.
        """
        with self._inside(namespace):
            mount_image(box, root)

    def open_box(self, box: Path, namespace: int) -> int:
        """A descriptor of a sandbox's files."""
        with self._inside(namespace):
            return os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def wipe_box(self, box: Path, namespace: int, most: int) -> bool:
        """Makes a sandbox's folders what they were at first, where no process of it runs.

        Args:
            box: see ``make_box``.
            namespace: of its mounts.
            most: files that are deleted at most.

        Returns:
            Whether nothing is left; False as soon as there is more to do.
        """
        with self._inside(namespace), contextlib.suppress(OSError):
            usage = os.statvfs(box)
            if usage.f_files - usage.f_ffree > most:
                return False
            for folder, mode in _SHARED.items():
                empty(box / folder)
                reset(box / folder, mode)
            # Without root outside they are the programs' own.
            reset(box / TERMINALS, 0o755)
            reset(box / TERMINALS / "ptmx", 0o666)
            return True
        return False

    @contextlib.contextmanager
    def _inside(self, namespace: int) -> Iterator[None]:
        enter_mounts(namespace)
        try:
            yield
        finally:
            enter_mounts(self._namespace)

    def leave(self) -> None:
        """Unmounts everything; afterwards the host's folder can be deleted."""
        detach(self.path)
