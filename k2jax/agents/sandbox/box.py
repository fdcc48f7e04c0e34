"""One sandbox, as the spawner holds it: its files, its control groups, and what runs in it."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import json
import os
from pathlib import Path
import resource
from typing import Any

from k2jax.agents.sandbox import cgroup
from k2jax.agents.sandbox.fork_server import ForkedCommand, ForkServer
from k2jax.agents.sandbox.launcher import Launcher, SandboxView
from k2jax.agents.sandbox.mount_namespace import NOBODY, BoxFiles, SandboxStage
from k2jax.agents.sandbox.overlay import ImageRoot
from k2jax.agents.sandbox.running_command import RunningCommand

_OWN_PROCESSES = 2
"""The isolating program and the first process of a command count in the control group; a fork server does as well."""
_IDLE_PROCESSES = 2
"""Those that are there while a fork server runs nothing."""
_MOST_WIPED = 1000
"""Files of a sandbox that is worth wiping, because a new one costs less than to delete more."""
_PATIENCE = 2.0
"""How long a control group may take to become empty after its processes have ended [s]."""


class Box:
    """One sandbox, as the spawner holds it.

    Attributes:
        key: what sandboxes have in common of which one can be used again as another; empty where that is not possible.
        server_root: what its fork server sees; None where it has none.
        server: the fork server that runs.
        jobs: commands that run.
        commands: how many there have been.
        is_closed: whether it belongs to nobody.
        closing: number of the request that closes it, until that is answered.
    """

    def __init__(
        self,
        stage: SandboxStage,
        launcher: Launcher,
        groups: cgroup.GroupPool,
        name: str,
        record: dict[str, Any],
        *,
        server: Mapping[str, Path] | None = None,
    ):
        """Makes its files and control groups; see ``SandboxSpawner`` for the record."""
        self.limits = record["limits"]
        self.processes = self.limits["processes"]
        self._stage, self._groups, self.group = (
            stage,
            groups,
            groups.take(self.limits["memory"], self.processes + _OWN_PROCESSES),
        )
        self.files: BoxFiles | None = None
        self.path = stage.path / "boxes" / name
        try:
            shown = {inside: stage.visible(source) for inside, source in record["read_only"].items()}
            view = SandboxView(shown, record["user"], record["image"])
            self.root = launcher.root(stage, self.path, view)
            self.server_root = None
            if server is not None and {"memory", "pids"} <= self.group.controllers:
                self.server_root = launcher.server_root(stage, self.path, view, server)
            self.bare = (
                launcher.root(stage, self.path, SandboxView({}, NOBODY, written=True)) if view.image else self.root
            )
            disk, files = self.limits["disk"], self.limits["files"]
            self.files = stage.make_box(self.path, disk=disk, files=files, on_image=bool(view.image))
            self._image = ImageRoot(view.image, shown, record["workdir"], stage.user or 0)
            if not record["deferred"]:
                self.mount()
        except BaseException:
            self._forget_root()
            self.remove()
            raise
        self.key = box_key(record) if self.server_root is not None else ""
        self.server: ForkServer | None = None
        self.jobs: set[RunningCommand | ForkedCommand] = set()
        self.commands, self.is_closed = 0, False
        self.closing: int | None = None

    def mount(self) -> None:
        """Mounts its root where it has an image, once, before anything runs on it."""
        if self._image.image:
            self._stage.mount_root(self.path, self.files.namespace, self._image)

    def make_room(self, servers: int) -> None:
        """Sets how many fork servers its control group has room for."""
        self.group.set_processes(self.processes + _OWN_PROCESSES + servers)

    def limits_of_a_process(self) -> dict[int, int]:
        """Limits that the isolating program runs under as well."""
        return {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: self.limits["open_files"],
            resource.RLIMIT_FSIZE: self.limits["disk"],
        }

    def limits_without_groups(self) -> dict[int, int]:
        """Limits of the command alone, in place of the control groups that are missing."""
        limits = {}
        if "memory" not in self.group.controllers:
            limits[resource.RLIMIT_AS] = self.limits["memory"]
        if "pids" not in self.group.controllers:
            limits[resource.RLIMIT_NPROC] = self.processes
        return limits

    def _forget_root(self) -> None:
        """Closes the descriptor of files that nobody is given."""
        if self.files is not None:
            os.close(self.files.root)

    @property
    def is_removed(self) -> bool:
        """Whether its files are deleted."""
        return self.files is None

    def wipe(self) -> bool:
        """Deletes all that a sandbox has left whose processes have ended; False where something may be left."""
        if not self.key or (self.server is not None and (self.server.is_ending or not self.server.is_ready)):
            return False
        if self.group.count() != (0 if self.server is None else _IDLE_PROCESSES):
            return False
        return self._stage.wipe_box(self.path, self.files.namespace, _MOST_WIPED)

    def open_files(self) -> int:
        """Another descriptor of its files."""
        return self._stage.open_box(self.path, self.files.namespace)

    def remove(self) -> None:
        """Deletes its files and gives its control group back."""
        if self.files is not None:
            os.close(self.files.namespace)
            self.files = None
        with contextlib.suppress(OSError):
            self.path.rmdir()
        self._groups.give_back(self.group, _PATIENCE)


def box_key(record: Mapping[str, Any]) -> str:
    """What a request to open a sandbox says of it; empty where it has an image, whose overlay only a new one has."""
    same = {name: record[name] for name in ("limits", "read_only", "user")}
    return "" if record["image"] else json.dumps(same, sort_keys=True)
