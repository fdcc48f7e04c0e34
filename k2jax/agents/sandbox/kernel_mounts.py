"""Calls of the kernel that mount: what the standard library has no functions for."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
import struct

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
NO_SETUID, NO_DEVICES, NO_PROGRAMS = 2, 4, 8
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 1 << 18
_DETACH, _NO_FOLLOW = 2, 8
_MOUNT_SETATTR, _HERE, _AND_BELOW = 442, -100, 0x8000
_ATTRIBUTES = 1 | 2 | 4
"""Read-only, no set-user-id programs, no devices, as mount_setattr(2) numbers them."""

_libc = ctypes.CDLL(None, use_errno=True)


def kernel_call(name: str, *arguments: object) -> None:
    """Calls a function of the C library.

    Raises:
        OSError: it does not return 0.
    """
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str | Path, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    """Mounts a file system, or with ``BIND`` a folder or file at another place, as the call of that name does.

    Raises:
        OSError: the kernel refuses it.
    """
    kernel_call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(options),
    )


def make_read_only(target: Path) -> None:
    """Makes a mount and all below it read-only, without devices and set-user-id programs (Linux 5.12)."""
    attributes = struct.pack("QQQQ", _ATTRIBUTES, 0, 0, 0)
    path, size = os.fsencode(target), len(attributes)
    kernel_call("syscall", _MOUNT_SETATTR, _HERE, path, _AND_BELOW, attributes, ctypes.c_size_t(size))


def detach(target: Path) -> None:
    """Unmounts a place and all below it, also where it is still used; raises as ``mount`` does."""
    kernel_call("umount2", os.fsencode(target), _DETACH | _NO_FOLLOW)
