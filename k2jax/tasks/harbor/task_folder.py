"""A task's folder in Harbor's format (schema 1.0 to 1.4): what of it can be run here, and what is refused by name.

A folder has ``task.toml``, ``instruction.md``, ``environment/``, ``tests/test.sh`` and ``solution/``; a task of several
steps has a folder of its own for each, ``steps/NAME``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import os
from pathlib import Path
import re
import tomllib
from typing import Any

from k2jax.agents.egress.allow_list import HOSTS, asked_hosts
from k2jax.errors import UserError, abbreviate
from k2jax.files.confined import confined

_MOST_TOML = 64 << 10
"""Bytes of ``task.toml``."""
_MOST_DOTS = 100
"""Of a line of it: each part of a dotted key costs the reader all parts before it."""
_MOST_TEXT = 1 << 20
"""Bytes of an instruction or of a Dockerfile."""
_MOST_FILES = 5 << 20
"""Bytes of all tests and solutions of a task."""
_MOST_COUNT = 1000
"""Files and folders of a folder of them."""
_MOST_STEPS = 100
_KNOWN = {
    "": {"schema_version", "version", "task", "metadata", "agent", "verifier", "environment", "solution", "steps",
         "multi_step_reward_strategy", "multi_step_reward_mode", "artifacts", "source"},
    "agent": {"timeout_sec", "user"},
    "verifier": {"timeout_sec", "user", "env", "environment_mode"},
    "environment": {"build_timeout_sec", "docker_image", "os", "cpus", "memory_mb", "storage_mb", "memory", "storage",
                    "gpus", "gpu_types", "allow_internet", "network_mode", "allowed_hosts", "mcp_servers", "env",
                    "workdir", "healthcheck", "skills_dir"},
    "solution": set(),
    "steps": {"name", "agent", "verifier", "min_reward", "artifacts", "healthcheck"},
}  # fmt: skip
"""Keys that are read, or have no meaning here and do no harm, by table."""
_SIZES = {"": 1, "b": 1 / (1 << 20), "k": 1 / 1024, "m": 1, "g": 1024, "t": 1 << 20}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)i?b?", re.IGNORECASE)
_SECONDS = 600.0
"""Of an agent and of a verifier that say none, as in Harbor."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HarborStep:
    """One step of a task; most tasks have one.

    Attributes:
        instruction: what the agent is told.
        tests: files below ``/tests`` by their paths, of which ``test.sh`` judges.
        solution: files below ``/solution`` by their paths, of which ``solve.sh`` is run; none where there is none.
        agent_seconds: wall time of the agent.
        seconds: wall time of the tests.
        env: variables of the tests.
        min_reward: a lower reward of this step ends the episode; None for no end.
    """

    instruction: str
    tests: Mapping[str, bytes]
    solution: Mapping[str, bytes]
    agent_seconds: float
    seconds: float
    env: Mapping[str, str]
    min_reward: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HarborTask:
    """A task that can be run on an image.

    Attributes:
        name: of the task.
        image: name of the image: what ``docker_image`` or a Dockerfile of one base says, else the task's own name.
        workdir: folder inside; empty for the image's.
        user: as whom the agent works; empty for the image's.
        hosts: that the sandbox may reach; none unless ``network_mode`` is ``allowlist``.
        env: variables of all commands.
        memory: of the sandbox [MiB]; 0 where the task says none.
        disk: of the files in it [MiB]; 0 where the task says none.
        steps: see ``HarborStep``.
        final: whether the last step's reward counts alone, and not the mean.
        unknown: keys that are not read.
    """

    name: str
    image: str
    workdir: str
    user: str
    hosts: tuple[str, ...]
    env: Mapping[str, str]
    memory: int
    disk: int
    steps: tuple[HarborStep, ...]
    final: bool
    unknown: tuple[str, ...]


def is_task_folder(folder: Path) -> bool:
    """Whether a folder is that of a task."""
    return (folder / "task.toml").is_file()


def read_task(folder: Path) -> HarborTask:
    """Reads the folder of a task.

    Raises:
        UserError: it is none, or asks for what sandboxes here do not have; the message names it.
    """
    reader = _Reader(folder.resolve())
    try:
        return reader.task()
    except (ValueError, OverflowError, RecursionError) as error:  # integers of thousands of digits among them
        raise reader.error(f"it cannot be read: {abbreviate(str(error), 200)}") from None
    except OSError as error:
        raise reader.error(f"it cannot be read: {error.strerror or error}") from None


class _Reader:
    def __init__(self, folder: Path):
        self._folder, self._unknown, self._room = folder, [], _MOST_FILES

    def error(self, message: str) -> UserError:
        return UserError(f"the task in {self._folder}: {message}")

    def task(self) -> HarborTask:
        text = self._bytes("task.toml", _MOST_TOML).decode()
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise self.error(f"a line of task.toml has more than {_MOST_DOTS} dots")
        config = tomllib.loads(text)
        self._note("", config)
        tables = {name: self._table(config, name) for name in ("task", "agent", "verifier", "environment", "solution")}
        environment = tables["environment"]
        self._refuse(environment, tables["verifier"])
        name = self._string(tables["task"], "name") or self._folder.name
        image, env, workdir, user = self._image(environment, name)
        env |= self._env(environment, "environment")
        strategy = config.get("multi_step_reward_strategy", "mean")
        if strategy not in ("mean", "final"):
            raise self.error(f"multi_step_reward_strategy is {abbreviate(strategy)}, and mean or final are known")
        return HarborTask(
            name=name,
            image=image,
            workdir=self._string(environment, "workdir") or workdir,
            user=self._user(tables["agent"]) or user,
            hosts=self._hosts(environment),
            env=env,
            memory=self._size(environment, "memory"),
            disk=self._size(environment, "storage"),
            steps=tuple(self._steps(config, tables["agent"], tables["verifier"])),
            final=strategy == "final",
            unknown=tuple(self._unknown),
        )

    def _refuse(self, environment: Mapping[str, Any], verifier: Mapping[str, Any]) -> None:
        """Refuses what no sandbox here has."""
        if environment.get("network_mode", "public" if environment.get("allow_internet") is True else "") == "public":
            self._unknown.append(
                "environment: the whole internet (its sandbox reaches none of it; rl.hosts lists hosts)"
            )
        reasons = {
            "a docker-compose file": any((self._folder / "environment").glob("docker-compose.y*ml")),
            "another system": environment.get("os", "linux") != "linux",
            "GPUs": environment.get("gpus", 0) != 0,
            "MCP servers": bool(environment.get("mcp_servers")),
            "a health check": bool(environment.get("healthcheck")),
            "a verifier in a container of its own": verifier.get("environment_mode", "shared") != "shared",
        }
        for what, asked in reasons.items():
            if asked:
                raise self.error(f"it asks for {what}, which sandboxes here do not have")

    def _steps(
        self, config: Mapping[str, Any], agent: Mapping[str, Any], verifier: Mapping[str, Any]
    ) -> Iterator[HarborStep]:
        steps = config.get("steps", [])
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise self.error("steps is no list of tables")
        if not steps:
            yield self._step("", agent, verifier, None, {})
            return
        if len(steps) > _MOST_STEPS or len({str(step.get("name"))[:1000] for step in steps}) < len(steps):
            raise self.error(f"it has more than {_MOST_STEPS} steps, or two of one name")
        shared = self._files("tests")
        for step in steps:
            self._note("steps", step)
            name = step.get("name")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise self.error(f"a step has the name {abbreviate(name)}, which is none of a folder")
            if step.get("healthcheck"):
                raise self.error(
                    f"the step {abbreviate(name)} asks for a health check, which sandboxes here do not have"
                )
            own = {key: self._table(step, key) for key in ("agent", "verifier")}
            minimum = step.get("min_reward")
            if minimum is not None and type(minimum) not in (int, float):
                raise self.error(f"min_reward of the step {name} is {abbreviate(minimum)}, which is no number")
            yield self._step(f"steps/{name}/", agent | own["agent"], verifier | own["verifier"], minimum, shared)

    def _step(
        self,
        place: str,
        agent: Mapping[str, Any],
        verifier: Mapping[str, Any],
        minimum: float | None,
        shared: dict[str, bytes],
    ) -> HarborStep:
        tests = shared | self._files(f"{place}tests")
        if "test.sh" not in tests:
            raise self.error(f"{place}tests has no test.sh")
        solution = self._files(f"{place}solution")
        if solution and "solve.sh" not in solution:
            raise self.error(f"{place}solution has no solve.sh")
        return HarborStep(
            instruction=self._text(f"{place}instruction.md"),
            tests=tests,
            solution=solution,
            agent_seconds=self._seconds(agent),
            seconds=self._seconds(verifier),
            env=self._env(verifier, "verifier"),
            min_reward=minimum,
        )

    def _image(self, environment: Mapping[str, Any], name: str) -> tuple[str, dict[str, str], str, str]:
        """Name of the image, and variables, folder and user that a Dockerfile of one base adds to it."""
        if image := self._string(environment, "docker_image"):
            return image, {}, "", ""
        if not (self._folder / "environment/Dockerfile").is_file():
            raise self.error("it has neither docker_image in task.toml nor environment/Dockerfile")
        return _simple_dockerfile(self._text("environment/Dockerfile")) or (name, {}, "", "")

    def _note(self, table: str, values: Mapping[str, Any]) -> None:
        """Keeps which keys of a table are not read."""
        self._unknown += sorted(f"{table}.{key}".lstrip(".") for key in values.keys() - _KNOWN[table])

    def _table(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        table = values.get(name, {})
        if not isinstance(table, dict):
            raise self.error(f"{name} is no table")
        if name in _KNOWN:
            self._note(name, table)
        return table

    def _string(self, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key) or ""
        if not isinstance(value, str) or "\0" in value:
            raise self.error(f"{key} is {abbreviate(value)}, which is no text")
        return value

    def _hosts(self, environment: Mapping[str, Any]) -> tuple[str, ...]:
        if environment.get("network_mode") != "allowlist":
            return ()
        try:
            return asked_hosts({HOSTS: environment.get("allowed_hosts", [])})
        except UserError as error:
            raise self.error(f"allowed_hosts: {error}") from None

    def _user(self, table: Mapping[str, Any]) -> str:
        value = table.get("user", "")
        return str(value) if type(value) is int else self._string(table, "user")

    def _env(self, table: Mapping[str, Any], name: str) -> dict[str, str]:
        """Variables; one that stands for a variable of the host is refused, since sandboxes are shown none."""
        env = table.get("env", {})
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise self.error(f"env of {name} is no table of texts")
        for key, value in env.items():
            if not _VARIABLE.fullmatch(key) or "\0" in value:
                raise self.error(f"env of {name} has {abbreviate(key)}, which is no variable")
            if "${" in value:
                raise self.error(
                    f"{abbreviate(key)} of {name} asks for a variable of this machine, {abbreviate(value)}"
                )
        return dict(env)

    def _seconds(self, table: Mapping[str, Any]) -> float:
        seconds = table.get("timeout_sec", _SECONDS)
        if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
            raise self.error(f"timeout_sec is {abbreviate(seconds)}, which is no positive number")
        return float(seconds)

    def _size(self, table: Mapping[str, Any], name: str) -> int:
        """A size [MiB], of ``NAME_mb`` or of the old key ``NAME``, such as ``2G``; 0 for none."""
        value = table.get(f"{name}_mb", table.get(name, 0))
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        size = float(match[1]) * _SIZES[match[2].lower()] if match else value
        if type(size) not in (int, float) or not 0 <= size < float("inf"):
            raise self.error(f"{name} is {abbreviate(value)}, which is no size")
        return int(size)

    def _text(self, path: str) -> str:
        return self._bytes(path, _MOST_TEXT).decode()

    def _bytes(self, path: str, most: int) -> bytes:
        real = confined(path, self._folder, path)
        if not os.path.isfile(real):
            raise self.error(f"{path} is no file")
        with open(real, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise self.error(f"{path} has more than {most:,} bytes")
        return data

    def _files(self, name: str) -> dict[str, bytes]:
        """All files of a folder by their paths in it; links to files are followed within the task's folder."""
        files: dict[str, bytes] = {}
        if not (self._folder / name).is_dir():
            return files
        top, count = Path(confined(name, self._folder, name)), 0
        for folder, folders, names in os.walk(top):
            folders.sort()
            count += len(folders) + len(names)
            if count > _MOST_COUNT:
                raise self.error(f"{name} has more than {_MOST_COUNT:,} files and folders")
            for path in (Path(folder, each) for each in sorted(names)):
                files[str(path.relative_to(top))] = data = self._bytes(str(path.relative_to(self._folder)), self._room)
                self._room -= len(data)
        return files


def _simple_dockerfile(text: str) -> tuple[str, dict[str, str], str, str] | None:
    """What a Dockerfile says that changes no file of its base; None for another one, which must be built."""
    image, env, workdir, user = "", {}, "", ""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if not word or word.startswith("#") or word.upper() in ("LABEL", "CMD", "ENTRYPOINT", "EXPOSE"):
            continue
        if word.upper() == "FROM" and not image and " " not in rest and "$" not in rest:
            image = rest
        elif word.upper() == "WORKDIR" and image and "$" not in rest:
            workdir = rest if rest.startswith("/") else f"{workdir}/{rest}"
        elif word.upper() == "USER" and image and "$" not in rest:
            user = rest
        elif word.upper() == "ENV" and image and (match := re.fullmatch(r"(\w+)=([^\s\"'$]*)", rest)):
            env[match[1]] = match[2]
        else:
            return None
    return (image, env, workdir, user) if image else None
