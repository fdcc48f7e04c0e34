"""Threads that may read and write what a sandbox's user may, and no more, where this process is root."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import ctypes
import os
import platform

from k2jax.agents.sandbox.mount_namespace import NOBODY

_SET_GROUPS, _SET_USER, _SET_GROUP = {"x86_64": (116, 122, 123), "aarch64": (159, 151, 152)}.get(
    platform.machine(), (0, 0, 0)
)
"""Calls of the kernel, which change one thread; the C library's ``setgroups`` changes all."""
_syscall = ctypes.CDLL(None, use_errno=True).syscall


def _become_the_user() -> None:
    """Gives this thread the user of root's sandboxes for files; the rights of root over files go with that."""
    if os.geteuid() != 0:
        return
    _syscall(_SET_GROUPS, 0, None)
    for call in (_SET_GROUP, _SET_USER):
        _syscall(call, NOBODY)
        if _syscall(call, NOBODY) != NOBODY:  # it returns what was set before
            raise OSError("a thread for the files of sandboxes keeps the rights of root")


USER_THREADS = ThreadPoolExecutor(8, "sandbox-files", initializer=_become_the_user)
"""A sandbox is shown files of the host that its user may not read, and a path may come from a model."""
