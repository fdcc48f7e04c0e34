"""Black-box agents as data: how each is started so that it finds its model at a gateway, and nothing else.

An agent is a program that is not changed. What is known of it is its command, its environment, its files and the
version for which they hold. Own agents are JSON files with the fields of ``BlackBoxAgent``.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from importlib import metadata
import json
import math
from pathlib import Path
import string
from typing import Any, Literal

from k2jax.errors import UserError, abbreviate, nearest

HOME = "/tmp/home"
"""Home folder of agents, inside."""


@dataclasses.dataclass(frozen=True)
class BlackBoxAgent:
    """An agent. Its command, environment and files may hold placeholders, written ``${name}``; ``$$`` is a dollar.

    The placeholders are ``task`` (the instruction), ``base`` (the rollout's URL, to which OpenAI's clients add
    ``/v1``), ``key``, ``model`` (a name; any other does as well), ``context`` (the longest prompt with its answer) and
    ``max_tokens`` (of one answer), ``home``, ``work`` (the folder of the task), and ``agents`` (the folder where agents
    are installed).

    Attributes:
        name: of the agent.
        argv: its command.
        env: variables of its environment; ``PATH`` and ``HOME`` are set already.
        files: texts by their paths inside, in ``${home}`` or ``/tmp``.
        turns: which of its requests are its own turns: those that declare ``tools``, so that others are side calls
            (titles, summaries), or ``all``.
        packages: what to install, each ``npm:NAME@VERSION`` or ``pypi:NAME==VERSION``; the first is the agent, whose
            installed version is compared.
        needs_cgroup: whether it reserves so many addresses that only a control group can limit its memory, as all that
            runs on Node does.
        programs: that an image must have, beside a shell: those that the agent calls itself.
        memory: limit of the agent and all that it starts [MiB].
        patience: how long its client waits for an answer that it wants whole, before it asks again; 0 where its answers
            are streams, which are kept alive, or it waits for ever [s].
    """

    name: str
    argv: tuple[str, ...]
    _: dataclasses.KW_ONLY
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    turns: Literal["tools", "all"] = "tools"
    packages: tuple[str, ...] = ()
    needs_cgroup: bool = False
    programs: tuple[str, ...] = ()
    memory: int = 4096
    patience: float = 0.0

    @property
    def version(self) -> str:
        """The version for which the rest holds; empty for an agent without packages."""
        return _parts(self.packages[0])[2] if self.packages else ""

    def pinned_to(self, version: str) -> BlackBoxAgent:
        """The same with another version.

        Raises:
            UserError: it has no package.
        """
        if not self.packages:
            raise UserError(f"the agent {self.name} has no package, so no version")
        kind, package, _ = _parts(self.packages[0])
        first = f"{kind}:{package}{'@' if kind == 'npm' else '=='}{version}"
        return dataclasses.replace(self, packages=(first, *self.packages[1:]))

    def install_commands(self, folder: str) -> list[str]:
        """Shell commands that install it into a folder."""
        npm = [package.partition(":")[2] for package in self.packages if package.startswith("npm:")]
        pypi = [package.partition(":")[2] for package in self.packages if package.startswith("pypi:")]
        commands = [f"npm install --prefix {folder} {' '.join(npm)}"] if npm else []
        if pypi:
            commands += [f"python3 -m venv {folder}/venv", f"{folder}/venv/bin/pip install {' '.join(pypi)}"]
        return commands

    def check_installed(self, folder: str) -> None:
        """Raises UserError, with the commands that mend it, unless this version is installed in a folder."""
        if not self.packages:
            return
        found = installed_version(self.packages[0], folder)
        if found != self.version:
            state = f"has {found}" if found else "does not have it"
            commands = " && ".join(self.install_commands(folder or "FOLDER"))
            where = f"and {folder} {state}" if folder else "and no folder=... says where it is"
            raise UserError(f"the agent {self.name} is described for version {self.version}, {where}; {commands}")

    def filled(self, values: Mapping[str, str]) -> BlackBoxAgent:
        """The agent with its placeholders replaced.

        Raises:
            UserError: a placeholder is unknown.
        """

        def fill(text: str) -> str:
            try:
                return string.Template(text).substitute(values)
            except (KeyError, ValueError) as error:
                raise UserError(
                    f"the agent {self.name} has a placeholder that is unknown or malformed ({error}); there are "
                    f"{', '.join(sorted(values))}, and $$ is a dollar"
                ) from None

        return dataclasses.replace(
            self,
            argv=tuple(map(fill, self.argv)),
            env={name: fill(value) for name, value in self.env.items()},
            files={fill(path): fill(text) for path, text in self.files.items()},
        )


def read_agent(path: str) -> BlackBoxAgent:
    """Reads an own agent from a JSON file.

    Raises:
        UserError: it cannot be read, or a field is wrong.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the agent {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the agent {path} is not JSON: {error}") from None
    fields = {field.name for field in dataclasses.fields(BlackBoxAgent)}
    if not isinstance(values, dict) or not {"name", "argv"} <= set(values):
        raise UserError(f"the agent {path} must be an object with name and argv")
    if unknown := sorted(set(values) - fields):
        raise UserError(f"the agent {path} has no field {unknown[0]!r}{nearest(unknown[0], sorted(fields))}")
    values |= {
        name: tuple(values[name]) for name in ("argv", "packages", "programs") if isinstance(values.get(name), list)
    }
    agent = BlackBoxAgent(**values)
    if wrong := _wrong_field(agent):
        raise UserError(f"{wrong} of the agent {path} has a wrong value: {abbreviate(getattr(agent, wrong))}")
    return agent


def installed_version(package: str, folder: str) -> str:
    """The version of a package, as ``BlackBoxAgent.packages`` names it, in a folder; empty where it is not there."""
    kind, name, _ = _parts(package)
    if kind == "npm":
        try:
            return json.loads((Path(folder) / "node_modules" / name / "package.json").read_text())["version"]
        except (OSError, ValueError, KeyError):
            return ""
    places = [str(path) for path in Path(folder).glob("venv/lib/python3*/site-packages")]
    found = next(iter(metadata.distributions(name=name, path=places)), None) if places else None
    return "" if found is None else found.version


def shown_folders(folder: str) -> tuple[str, ...]:
    """Host paths that a sandbox must show for what is installed in a folder: it, and the Python of its ``venv``."""
    shown = [str(Path(folder).absolute())]
    python = Path(folder) / "venv" / "bin" / "python"
    if python.exists():
        prefix = python.resolve().parents[1]
        shown += [] if str(prefix) == "/usr" else [str(prefix)]
    return tuple(shown)


def _wrong_field(agent: BlackBoxAgent) -> str:
    """Name of a field with a value of the wrong type; empty where there is none."""

    def is_texts(value: Any) -> bool:
        return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())

    def is_words(value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(word, str) for word in value)

    good = {
        "name": isinstance(agent.name, str) and bool(agent.name),
        "argv": is_words(agent.argv) and bool(agent.argv),
        "env": is_texts(agent.env),
        "files": is_texts(agent.files),
        "turns": agent.turns in ("tools", "all"),
        "packages": isinstance(agent.packages, tuple) and all(map(_is_package, agent.packages)),
        "needs_cgroup": isinstance(agent.needs_cgroup, bool),
        "programs": is_words(agent.programs),
        "memory": type(agent.memory) is int and agent.memory > 0,
        "patience": type(agent.patience) in (int, float) and 0 <= agent.patience < math.inf,
    }
    return next((name for name, is_good in good.items() if not is_good), "")


def _is_package(text: Any) -> bool:
    return isinstance(text, str) and text.startswith(("npm:", "pypi:")) and all(_parts(text))


def _parts(package: str) -> tuple[str, str, str]:
    """Kind, name without extras, and version."""
    kind, _, pinned = package.partition(":")
    name, _, version = pinned.rpartition("@") if kind == "npm" else pinned.partition("==")
    return kind, name.partition("[")[0], version
