"""A user namespace around the isolating program, so that what the kernel counts for a user, it counts for one command.

Sandboxes are processes of one user of the host. What that user may have of inotify instances or queued signals, the
kernel counts in each user namespace and in all above it, each with a limit of its own: without one of its own here, a
sandbox could use up what all have. A namespace has limits below ``/proc/sys/user``; limits of processes hold in a
namespace as they are set in it, and above it as they were when it was made. Kernels before 5.14 count signals for the
host's user alone: there a low limit would be one for all sandboxes together, so it stays as it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import platform
import re
import resource

from k2jax.agents.sandbox.mount_namespace import map_one_user, new_user_namespace

_FIRST_COUNTING = (5, 14)
_SIGNALS = 256
"""Queued signals and timers of a command."""
_OF_THE_NAMESPACE = {"max_inotify_instances": 16, "max_inotify_watches": 8192}
"""Files in /proc/sys/user."""


def enter_counted_namespace() -> None:
    """Moves this process, which has a single thread and no privilege, into a namespace with limits of its own.

    Where the machine does not allow it, nothing changes: ``python -m k2jax.sandbox check`` says what sandboxes share.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        new_user_namespace()
    except OSError:
        return
    map_one_user(user, user, group, group)
    for name, count in _OF_THE_NAMESPACE.items():
        with contextlib.suppress(OSError):  # a kernel without it, or /proc/sys is read-only
            Path("/proc/sys/user", name).write_text(str(count))
    for number, limit in _limits().items():
        lowest = min(limit, resource.getrlimit(number)[1] % (1 << 64))  # no limit is -1
        resource.setrlimit(number, (lowest, lowest))


def _limits() -> dict[int, int]:
    """Limits of processes by number of the resource."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    counting = version is not None and tuple(map(int, version.groups())) >= _FIRST_COUNTING
    return {resource.RLIMIT_MSGQUEUE: 0} | ({resource.RLIMIT_SIGPENDING: _SIGNALS} if counting else {})
