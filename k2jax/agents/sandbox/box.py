"""One sandbox, as the spawner holds it: its files, its control groups, and what runs in it."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Any

from k2jax.agents.sandbox import cgroup
from k2jax.agents.sandbox.launcher import Launcher, SandboxView
from k2jax.agents.sandbox.mount_namespace import NOBODY, BoxFiles, SandboxStage
from k2jax.agents.sandbox.overlay import ImageRoot
from k2jax.agents.sandbox.running_command import RunningCommand

_OWN_PROCESSES = 2
"""The isolating program and the first process of the namespace count in the control group."""
_PATIENCE = 2.0
"""How long a control group may take to become empty after its processes have ended [s]."""


class Box:
    """One sandbox, as the spawner holds it."""

    def __init__(
        self,
        stage: SandboxStage,
        launcher: Launcher,
        groups: cgroup.GroupPool,
        name: str,
        record: dict[str, Any],
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
        self.jobs: set[RunningCommand] = set()
        self.closing: int | None = None

    def mount(self) -> None:
        """Mounts its root where it has an image, once, before anything runs on it."""
        if self._image.image:
            self._stage.mount_root(self.path, self.files.namespace, self._image)

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

    def remove(self) -> None:
        """Deletes its files and gives its control group back."""
        if self.files is not None:
            os.close(self.files.namespace)
            self.files = None
        with contextlib.suppress(OSError):
            self.path.rmdir()
        self._groups.give_back(self.group, _PATIENCE)
