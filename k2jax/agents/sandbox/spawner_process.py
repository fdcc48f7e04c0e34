"""The whole life of a spawner's process; it imports nothing but the standard library and the sandbox's own modules."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import json
import os
from pathlib import Path
import resource
import socket

from k2jax.agents.sandbox import wire
from k2jax.agents.sandbox.arguments import BubblewrapLauncher
from k2jax.agents.sandbox.launcher import Launcher
from k2jax.agents.sandbox.mount_namespace import SandboxStage, adopt_orphans
from k2jax.agents.sandbox.nsjail_config import NsjailLauncher
from k2jax.agents.sandbox.spawner import SandboxSpawner
from k2jax.agents.sandbox.warden import start_warden

LAUNCHERS: dict[str, type[Launcher]] = {"bubblewrap": BubblewrapLauncher, "nsjail": NsjailLauncher}


def run(words: Sequence[str]) -> None:
    """The whole life of a spawner.

    Args:
        words: descriptor of a socket to the program that it serves; an empty folder, which it deletes at its end; what
            isolates, of ``LAUNCHERS``; path of that program, relative to the next where that is given; a folder that
            others may not be able to reach, or empty; ``groups`` to use control groups, ``limits`` not to; the Python
            of fork servers as JSON, see ``SandboxSpawner``.
    """
    descriptor, folder, kind, program, wheel, mode, python = words
    with contextlib.suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    start_warden(folder)
    os.umask(0o022)  # others read what it writes for them
    try:
        adopt_orphans()
        stage = SandboxStage(Path(folder))
        program = str(stage.visible(wheel) / program) if wheel else program
        launcher, shown = LAUNCHERS[kind](), json.loads(python)
        spawner = SandboxSpawner(connection, stage, program, launcher=launcher, groups=mode == "groups", python=shown)
    except OSError as error:
        connection.sendall(wire.encode(wire.Message({"request": 0, "failure": str(error)})))
        return
    connection.sendall(wire.encode(wire.Message({"request": 0})))
    spawner.run()
    stage.leave()
    with contextlib.suppress(OSError):
        os.rmdir(folder)
