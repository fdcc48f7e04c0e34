"""What sandboxes on other machines have in common, where all that there is is a way to run one program after the other.

Commands of one sandbox run one at a time. At the end of each every process is killed that its user may signal, which is
everything but the machine's own first process: so nothing that a command left behind, whatever it did to stay, is there
when the next one starts. Files are read and written by this package's own code (files.py), which runs inside.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping
import contextlib
import json
from pathlib import Path
import time
from typing import Any

from k2jax.agents.sandbox import files
from k2jax.agents.sandbox.folder import place_of
from k2jax.agents.sandbox.images import image_name
from k2jax.agents.sandbox.namespaces import ENVIRONMENT
from k2jax.agents.sandbox.types import (
    MEBI,
    WORK,
    Capabilities,
    Command,
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxSpec,
    command_words,
)
from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json

_LONGEST_COMMAND = 1 << 18
"""Bytes of all words of a command, which go through the address of a request."""
_RUN = """
exec 3>&2 2>/dev/null
n=$1 p=$2 v=$3 f=$4; shift 4
if [ "$p" -gt 0 ]; then (ulimit -u "$p") && ulimit -u "$p" || ulimit -p "$p"; fi
if [ "$v" -gt 0 ]; then ulimit -v "$v"; fi
ulimit -n "$f"; ulimit -c 0
cd -- "$1" 2>&3 || exit 127
shift; unset OLDPWD
if [ "$n" -eq 0 ]; then (exec env -i "$@") 2>&3 3>&- </dev/null
else head -c "$n" 3>&- | (exec env -i "$@") 2>&3 3>&-; fi
exit $?
"""
"""Runs a command behind a shell: input of so many bytes, limits, folder, then variables and the command."""
_SWEEP = "trap '' HUP INT TERM; while kill -9 -1 2>/dev/null; do :; done; exit 0"
_FILES_PROGRAM = f"""from __future__ import annotations
class SandboxError(Exception): pass
{Path(files.__file__).read_text(encoding="utf-8").replace("from __future__ import annotations", "").replace("from k2jax.agents.sandbox.types import SandboxError", "")}
import json, sys
answer, data = {{}}, b""
try:
    folder, path = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECTORY), json.loads(sys.argv[3])
    if sys.argv[1] == "read_file": data = read_file(folder, path, int(sys.argv[4]))
    elif sys.argv[1] == "write_file": write_file(folder, path, sys.stdin.buffer.read())
    else: answer["names"] = list_folder(folder, path, int(sys.argv[4]))
except (SandboxError, OSError) as error: answer["error"] = str(error)
sys.stdout.buffer.write(json.dumps(answer).encode() + b"\\n" + data)
"""  # noqa: E501
_START, _GRACE, _FILES_TIMEOUT = 60.0, 30.0, 60.0
_SWEEPS = 5
_LONGEST_REASON = 300  # characters of an error from inside
_MOST_NAMES = 1 << 25


class CommandOutputs:
    """What a running command has written, up to a limit for each output.

    Args:
        limit: bytes that are kept of each output.

    Attributes:
        begun: set when the command has started.
        stdout: its output.
        stderr: its error output.
        truncated: more was dropped.
    """

    def __init__(self, limit: int):
        self.begun = asyncio.Event()
        self.stdout, self.stderr, self.truncated = bytearray(), bytearray(), False
        self._limit = limit

    def add(self, kept: bytearray, data: bytes) -> None:
        """Appends to ``stdout`` or ``stderr``."""
        room = self._limit - len(kept)
        self.truncated |= len(data) > room
        kept += data[:room]


class RemoteSandbox(Sandbox):
    """A sandbox on another machine; see ``Sandbox``. Commands wait for each other; see the module.

    Args:
        spec: what it was made of.
        capabilities: those of its backend.
        python: the interpreter inside that reads and writes files.
        limits: ``processes`` and ``memory`` of each command, where the machine itself has none.
    """

    longest_command = _LONGEST_COMMAND

    def __init__(self, spec: SandboxSpec, capabilities: Capabilities, *, python: str, limits: Mapping[str, int]):
        super().__init__(capabilities, ENVIRONMENT | dict(spec.env), spec.workdir or WORK)
        self._python = python
        self._limits = [limits.get("processes", 0), limits.get("memory", 0) >> 10, spec.limits.open_files]
        self._lock = asyncio.Lock()
        self._open, self._untidy = True, False
        self._tidying: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Future[None] | None = None

    async def _run(self, command: Command) -> ExecResult:
        """Runs a command when those before it have ended."""
        async with self._lock:
            await self._tidy()
            self._untidy = True
            try:
                result = await self._started(command)
                await self._tidy()
            except asyncio.CancelledError:
                task = asyncio.ensure_future(self._tidy_later())
                self._tidying.add(task)
                task.add_done_callback(self._tidying.discard)
                raise
        return result

    async def close(self) -> None:
        """See ``Sandbox.close``. The end goes on when the wait for it is cancelled."""
        if self._ending is None:
            self._open = False
            for task in self._tidying - {asyncio.current_task()}:  # which may be what closes it
                task.cancel()
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    @abc.abstractmethod
    async def _stream(self, argv: list[str], stdin: bytes, outputs: CommandOutputs) -> int:
        """Runs a program and gives its exit code; SandboxError where nobody can tell it."""

    @abc.abstractmethod
    async def _end(self) -> None:
        """Ends the machine; called once."""

    async def _out_of_memory(self) -> bool:
        """Whether the command that has just been killed was killed for memory; the machine is ready again."""
        return False

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxError("the sandbox is closed")

    def _problem(self, command: Command) -> bytes | None:
        if (problem := super()._problem(command)) is not None:
            return problem
        if any("\udc80" <= character <= "\udcff" for word in command_words(command) for character in word):
            return b"a word of the command holds bytes that are no UTF-8"
        return None

    async def _started(self, command: Command) -> ExecResult:
        self._check_open()
        words = [str(number) for number in (len(command.stdin), *self._limits)]
        variables = [f"{name}={value}" for name, value in command.env.items()]
        shell = ["/bin/sh", "-c", _RUN, "sh", *words, command.cwd, *variables, *command.argv]
        return await self._watched(shell, command.stdin, command.timeout, command.output_limit)

    async def _watched(self, argv: list[str], stdin: bytes, timeout: float, limit: int) -> ExecResult:
        outputs = CommandOutputs(limit)
        running = asyncio.ensure_future(self._stream(argv, stdin, outputs))
        begun = asyncio.ensure_future(outputs.begun.wait())
        try:
            await asyncio.wait({running, begun}, timeout=_START, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not begun.done():
                raise SandboxError("the sandbox did not start a command in time")
            started = time.monotonic()
            done, _ = await asyncio.wait({running}, timeout=timeout)
            seconds, timed_out = time.monotonic() - started, not done
            if timed_out:
                await self._sweep()
                await asyncio.wait({running}, timeout=_GRACE)
                if not running.done():
                    raise SandboxError("the sandbox did not end a command in time")
            code = 137 if timed_out else running.result()
        finally:
            for task in (running, begun):
                task.cancel()
            await asyncio.gather(running, begun, return_exceptions=True)
        killed = code == 137 and not timed_out and await self._out_of_memory()
        return ExecResult(
            code,
            bytes(outputs.stdout),
            bytes(outputs.stderr),
            seconds,
            timed_out=timed_out,
            out_of_memory=killed,
            truncated=outputs.truncated,
        )

    async def _tidy(self) -> None:
        """Ends what the last command has left."""
        if self._untidy:
            await self._sweep()
            self._untidy = False

    async def _tidy_later(self) -> None:
        with contextlib.suppress(SandboxError):
            async with self._lock:
                await self._tidy()

    async def _sweep(self) -> None:
        """Kills every process; what is killed may kill the killer first, which therefore tries again."""
        self._check_open()
        for _ in range(_SWEEPS):
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(self._stream(["/bin/sh", "-c", _SWEEP], b"", CommandOutputs(0)), _GRACE) == 0:
                    return
        await self.close()
        raise SandboxError("the processes of a command could not be ended, so its sandbox was")

    async def _on_files(self, function: str, path: str, argument: Any) -> Any:
        self._check_open()
        place, below = place_of(path, {name: name for name in ("/work", "/tmp", "/dev/shm")}, self.workdir)
        data, limit = (argument, 0) if function == "write_file" else (b"", argument)
        argv = [self._python, "-I", "-S", "-c", _FILES_PROGRAM, function, place, json.dumps(below), str(limit)]
        room = MEBI + (_MOST_NAMES if function == "list_folder" else limit)
        command = Command(argv, data, "/", self._env, _FILES_TIMEOUT, room)
        if (problem := self._problem(command)) is not None:
            raise SandboxError(f"{path[:80]!a}: {problem.decode()}")
        async with self._lock:
            await self._tidy()
            result = await self._started(command)
        head, _, rest = result.stdout.partition(b"\n")
        try:
            answer = await asyncio.to_thread(parse_bounded_json, head)
            if not isinstance(answer, dict):
                raise ValueError("it is no JSON object")
        except ValueError:
            message = result.stderr.decode(errors="replace")[-200:]
            raise SandboxError(f"{path[:80]!a}: {self._python} inside gave no answer: {message!a}") from None
        if "error" in answer:
            raise SandboxError(str(answer["error"])[:_LONGEST_REASON])
        return answer.get("names") or [] if function == "list_folder" else rest


def check_remote_spec(spec: SandboxSpec, kind: str, images: str) -> None:
    """Raises UserError for a spec that names files of this machine, or an image that is not one of ``images``."""
    if spec.image:
        image_name(spec.image, images)
    if spec.hosts:
        raise UserError(f"the {kind} backend has no proxy to reach {abbreviate(spec.hosts[0])}; choose bubblewrap")
    if spec.user:
        raise UserError(f"the {kind} backend cannot choose the user {abbreviate(spec.user)}: leave it to the image")
    if spec.read_only:
        raise UserError(f"the {kind} backend cannot show files of this machine: leave read_only empty, name an image")
