"""The environment of tasks in a git repository that is on their image: the agent's patch is the outcome.

Images of published data sets hold the repository with all that came after the base commit: branches, tags, and objects
that a shell finds. Before the agent begins, this is removed; see ``image_scripts.PREPARE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from k2jax.agents.environment import Observation
from k2jax.agents.environments import image_scripts
from k2jax.agents.environments.git_history import checked_id
from k2jax.agents.environments.repository import LARGEST_PATCH
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.sandbox import ExecResult, HostPaths, Limits, Sandbox, SandboxSpec
from k2jax.agents.sandbox.types import MEBI
from k2jax.agents.task import Task
from k2jax.errors import UserError

PLACE = "repository"
"""Key of a task's metadata: ``{"workdir": folder or empty, "env": {name: value}}`` of its repository."""
LIMITS = Limits(memory=4096 * MEBI, processes=512, disk=2048 * MEBI, files=200_000, open_files=1024)
"""Of the sandboxes, where tasks set no others."""
_PREPARING = 600.0
"""Wall time of removing what came after the base commit, which packs the whole history where there is some [s]."""
_DIFFING = 120.0
_MOST_UNTRACKED = MEBI
_REFUSED = 9
_clean: dict[tuple[str, str, str], None] = {}
"""Images, folders and base commits that hold nothing of the future: they need not be looked through again."""
_places: dict[tuple[Any, ...], ImagePlace] = {}
"""Where repositories are, by image, folder and variables of a task."""
_MOST_KNOWN = 10_000


class ImagePlace(NamedTuple):
    """Where the repository of an image is.

    Attributes:
        folder: of its work tree.
        env: variables of all commands: the task's, and those that activate a conda environment named ``testbed``.
    """

    folder: str
    env: dict[str, str]


class Beginning(NamedTuple):
    """What an agent begins with.

    Attributes:
        tree: id of its tree.
        untracked: paths that git did not know then.
    """

    tree: str
    untracked: list[bytes]


class ImageRepositoryEnvironment(ToolEnvironment):
    """Tools in a sandbox on the task's image, in the folder of its repository at the base commit, with no future.

    The outcome is ``{"patch": text, "too_large": bool, "folder": path}``: all that differs from what the agent began
    with, new files too, whether or not it was committed. Files that git did not know at the beginning are left out.
    """

    needs_sandbox = True
    _place = ImagePlace("", {})

    async def reset(self, task: Task, seed: int) -> Observation:
        """Finds the repository first; see ``ToolEnvironment.reset``."""
        await self._find(task)
        return await super().reset(task, seed)

    async def open_workspace(self, task: Task, needs: SandboxSpec) -> Sandbox:
        """Finds the repository first; see ``Environment.open_workspace``."""
        await self._find(task)
        return await super().open_workspace(task, needs)

    def spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        """On the image, in the folder of its repository."""
        place = self._place
        return SandboxSpec(image=task.image, read_only=read_only, limits=LIMITS, env=place.env, workdir=place.folder)

    async def prepare(self, task: Task, sandbox: Sandbox | None) -> None:
        """Puts the repository at the base commit, and removes what came after it.

        Raises:
            EnvironmentFailedError: that is not possible; the message says why.
        """
        self._beginning = await begin(task, sandbox, self._place.folder)

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """The agent's patch; empty where it cannot be had, because the agent has left no repository."""
        place = {"folder": self._place.folder}
        excluded = b"".join(b"/%s\n" % _escaped(path) for path in self._beginning.untracked)
        for form in ("text", "binary"):
            words = (self._place.folder, self._beginning.tree, form)
            result = await run_script(sandbox, image_scripts.CHANGES, words, excluded, _DIFFING, LARGEST_PATCH)
            if result.truncated:
                return {"patch": "", "too_large": True, **place}
            if result.code:
                return {"patch": "", "too_large": False, "error": reason_of(result), **place}
            try:
                return {"patch": result.stdout.decode(), "too_large": False, **place}
            except UnicodeDecodeError:  # git's form for binary files is ASCII
                continue
        return {"patch": "", "too_large": False, "error": "the patch is no text", **place}

    async def _find(self, task: Task) -> None:
        """Looks through an image once, in a sandbox of its own: another one's folder must be known when it opens."""
        if not task.image or self.services.backend is None:
            what = "a backend of sandboxes" if task.image else "an image"
            raise UserError(f"the task {task.id!r} needs {what} for its environment 'image_repository'")
        if (place := _places.get(_key(task, task.metadata[PLACE]["workdir"]))) is None:
            spec = SandboxSpec(image=task.image, limits=task.limits.of(LIMITS), env=task.metadata[PLACE]["env"])
            async with await self.services.backend().open(spec) as sandbox:
                place = await find_repository(task, sandbox)
        self._place = place


async def find_repository(task: Task, sandbox: Sandbox, folder: str = "") -> ImagePlace:
    """Where the repository is on the image of a sandbox; ``folder`` is where it is known to be.

    Raises:
        EnvironmentFailedError: there is none, or no git.
        SandboxError: the sandbox failed.
    """
    own = task.metadata[PLACE]
    asked = folder or own["workdir"]
    if (place := _places.get(_key(task, asked))) is not None:
        return place
    result = await run_script(sandbox, image_scripts.INSPECT, (asked,))
    lines = result.stdout.decode(errors="replace").split("\n")
    if result.code or len(lines) < 3:
        raise EnvironmentFailedError(f"the image {task.image!r} of the task {task.id!r}: {reason_of(result)}")
    found, prefix, path = lines[:3]
    env = dict(own["env"])
    if prefix and "PATH" not in env:
        env |= {"PATH": f"{prefix}/bin:{path}", "CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": "testbed"}
    if len(_places) < _MOST_KNOWN:
        _places[_key(task, asked)] = _places[_key(task, found)] = ImagePlace(found, env)
    return ImagePlace(found, env)


def _key(task: Task, folder: str) -> tuple[Any, ...]:
    return task.image, folder, *task.metadata[PLACE]["env"].items()


async def begin(task: Task, sandbox: Sandbox, folder: str) -> Beginning:
    """Puts a repository on an image at the task's base commit, and removes what came after it.

    Raises:
        EnvironmentFailedError: that is not possible; the message says why.
        SandboxError: the sandbox failed.
    """
    base = checked_id(str(task.metadata["base"]))
    key = (task.image, folder, base)
    words = (folder, base, "clean" if key in _clean else "")
    result = await run_script(sandbox, image_scripts.PREPARE, words, b"", _PREPARING, _MOST_UNTRACKED)
    tree, _, rest = result.stdout.partition(b"\n")
    state, _, paths = rest.partition(b"\n")
    if result.truncated:
        raise EnvironmentFailedError(f"{folder} of the image {task.image!r} has too many files that git does not know")
    if result.code or state not in (b"clean", b"packed"):
        raise EnvironmentFailedError(f"the image {task.image!r} of the task {task.id!r}: {reason_of(result)}")
    if state == b"clean" and len(_clean) < _MOST_KNOWN:
        _clean[key] = None
    return Beginning(tree.decode(), [path for path in paths.split(b"\0") if path])


async def run_script(
    sandbox: Sandbox,
    script: str,
    words: tuple[str, ...],
    stdin: bytes = b"",
    timeout: float = _DIFFING,
    output_limit: int = MEBI,
) -> ExecResult:
    """Runs one of ``image_scripts`` with its arguments.

    Raises:
        SandboxError: the sandbox failed.
    """
    argv = ["/bin/sh", "-c", script, "sh", *words]
    return await sandbox.exec(argv, stdin=stdin, timeout=timeout, output_limit=output_limit)


def reason_of(result: ExecResult) -> str:
    """Why a script failed."""
    if result.timed_out:
        return "it took too long"
    if result.out_of_memory:
        return "it ran out of memory"
    text = result.stderr[-300:].decode(errors="replace").strip()
    if result.code == 127 and "git" not in text:
        return f"it has no shell: {text}"
    return text if result.code == _REFUSED else f"exit code {result.code}: {text}"


def _escaped(path: bytes) -> bytes:
    """A path as git's patterns of ignored files write it."""
    return b"".join(b"\\" + byte if byte in b"\\*?[]! #" else byte for byte in (bytes((b,)) for b in path))
