"""What the spawner knows about the programs that isolate: how each is called, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from k2jax.agents.sandbox.mount_namespace import SandboxStage


class Invocation(NamedTuple):
    """How one command is started.

    Attributes:
        argv: the isolating program's name and arguments.
        files: what it reads, by the number of the descriptor.
        status: number of the descriptor to which it tells what it does.
        block: number of the descriptor at which it waits for a byte before the command starts; None where it does not.
    """

    argv: list[bytes]
    files: dict[int, bytes]
    status: int
    block: int | None = None


class SandboxView(NamedTuple):
    """What the commands of a sandbox see, and as whom they run.

    Attributes:
        shown: files and folders of the host by their places inside, read-only; where the sandbox has an image, they are
            in its root.
        user: number of their user and group inside.
        image: folder of the image; empty for the host's programs.
        written: whether what was written to the image is at ``/upper``.
    """

    shown: Mapping[str, Path]
    user: int
    image: str = ""
    written: bool = False


class Launcher(Protocol):
    """One isolating program.

    Attributes:
        complaints: how its messages in the command's error output begin where the command is to blame.
    """

    complaints: tuple[bytes, ...]

    def root(self, stage: SandboxStage, box: Path, view: SandboxView) -> Any:
        """What is the same for every command of a sandbox.

        Args:
            stage: where the host's part lies.
            box: the sandbox's own files.
            view: see ``SandboxView``.
        """
        ...

    def server_root(self, stage: SandboxStage, box: Path, view: SandboxView, shown: Mapping[str, Path]) -> Any:
        """The same for a fork server, which is shown more; None where this program starts none."""
        ...

    def invoke(self, root: Any, record: Mapping[str, Any], late: Mapping[int, int]) -> Invocation:
        """How a command is started.

        Args:
            root: see ``root``.
            record: see ``SandboxSpawner``.
            late: limits of the command alone, by number of the resource.
        """
        ...

    def told(self, status: bytes) -> dict[str, Any]:
        """What the program has told so far: ``child-pid``, ``exit-code``, ``started``, ``error``, ``errno``."""
        ...


def json_records(data: bytes) -> dict[str, Any]:
    """Objects of JSON one after the other, in one record; the last may be incomplete."""
    records: dict[str, Any] = {}
    text, decoder = data.decode(), json.JSONDecoder()
    while text := text.lstrip():
        try:
            record, end = decoder.raw_decode(text)
        except json.JSONDecodeError:  # the rest has not arrived
            break
        records |= record
        text = text[end:]
    return records
