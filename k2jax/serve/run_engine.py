"""An engine that joins a run: it takes each version of the run's weights, and answers what the run asks.

See ``k2jax.rl.engines.engine_pool`` for the other end. The run may be killed and started again: the engine then waits
for it, and ends when the run does. Of an engine of several processes the first one does all that is here, and the
others do what it says; ``engine_part`` is what each of them has.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
import socket
import sys
import time
from typing import NoReturn

import jax

from k2jax import processes
from k2jax.agents.collect.engine_address import EngineAddress
from k2jax.agents.collect.engine_states import EngineRole, EngineState
from k2jax.agents.collect.event_loop import calm_collector
from k2jax.agents.collect.run_member import MemberEnd, RunMember
from k2jax.agents.collect.wire import FrameConnection
from k2jax.errors import UserError
from k2jax.inference import Worker
from k2jax.inference.client import EngineClient
from k2jax.inference.continuous import REST_ON_CPU
from k2jax.inference.media import placed_chunk
from k2jax.rl.engines.run_record import RunRecord, is_done
from k2jax.rl.followers.opening import open_commands
from k2jax.serve.engine_part import EnginePart, check_reachable, say
from k2jax.serve.following import INTERVAL, WeightFollower
from k2jax.trajectory.steps import POLICY

POLL = 0.1
"""Time between two looks for a run [s]."""
DONE_SECONDS = 120.0
"""How long an engine waits whether a run that has done all its steps is started again, with more of them [s]."""
WEIGHTS_SECONDS = 0.05
"""Time between two looks for a version of the weights [s]."""
FIRST_SECONDS = 30.0
"""How long an engine asks a run that is there for its first weights: processes of a run end one after the other [s]."""


def follow(workdir: Path, ends_with_input: bool = False, role: str = POLICY) -> int:
    """Serves the run of a workdir until the run ends; returns the exit code.

    Args:
        workdir: of the run; it may not be there yet.
        role: what the engine answers as at first; the run may change it.
        ends_with_input: end when standard input ends, as the process does that has started this one.

    Raises:
        UserError: the run is one that this engine cannot serve.
    """
    with open_commands("the workdir of the run", str(workdir)) as commands:
        part = EnginePart(workdir, commands)
        commands.issue_while(lambda: asyncio.run(_serve(workdir, part, EngineRole(role), ends_with_input)))
    return 0


async def _serve(workdir: Path, part: EnginePart, role: EngineRole, ends_with_input: bool) -> None:
    if ends_with_input:
        asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 1) or os._exit(0))
    say(f"waiting for the weights of {workdir}")
    record, first, served = await _begun(workdir), None, None
    while record is not None:
        if served is None:
            served, first = await _opened(part, record, workdir, role), record
            calm_collector()
        elif record.weights != first.weights:
            raise UserError(f"the run of {workdir} gives its weights at other addresses now; start this engine again")
        end = MemberEnd.LOST if served is None else await served.member.serve(_address(record, workdir))
        if isinstance(end, EngineRole):
            say(f"answers as {end.role} from now on")
            await asyncio.to_thread(served.close)
            role, served = end, None
            continue
        if end == MemberEnd.RUN_ENDED:
            break
        say(f"lost the run of {workdir}; waiting for it to go on")
        record = await _found(workdir)
    say(f"the run of {workdir} has ended")


async def _begun(workdir: Path) -> RunRecord | None:
    """The record of the run of a workdir, which may begin later; None where it has done all its steps."""
    done_since = None
    while (record := await _found(workdir)) is None:
        now = time.monotonic()
        done_since = (done_since or now) if is_done(workdir) else None
        if done_since is not None and now >= done_since + DONE_SECONDS:
            return None
        await asyncio.sleep(POLL)
    return record


async def _opened(part: EnginePart, record: RunRecord, workdir: Path, role: EngineRole) -> _Served | None:
    """The engine with its first weights; None where the run was lost before they were there.

    Raises:
        UserError: a run that is there does not give them.
    """
    await asyncio.to_thread(part.open, record, role)
    since, message = time.monotonic(), ""
    while True:
        try:
            taken = await asyncio.to_thread(part.take, None)
        except UserError as error:
            if RunRecord.read(workdir) != record or not await _is_there(_address(record, workdir)):
                return None
            if time.monotonic() >= since + FIRST_SECONDS:
                raise
            if str(error) != message:
                say(message := str(error))
            await asyncio.sleep(INTERVAL)
        else:
            return _Served(part, taken, role, asyncio.get_running_loop())


async def _found(workdir: Path) -> RunRecord | None:
    """The record of the run of a workdir, once somebody listens there; None where there is no run."""
    while (record := RunRecord.read(workdir)) is not None:
        if record.socket and await _is_there(_address(record, workdir)):
            return record
        await asyncio.sleep(POLL)
    return None


def _address(record: RunRecord, workdir: Path) -> EngineAddress:
    """Where the run takes this machine's engines."""
    if record.is_here:
        return EngineAddress.parse(record.socket)
    check_reachable(record, workdir)
    return EngineAddress.parse(record.listen)


async def _is_there(address: EngineAddress) -> bool:
    """Whether a run listens."""
    connection = FrameConnection(lambda *frame: None, lambda: None)
    try:
        await address.connect(connection)
    except OSError:
        return False
    connection.abort()
    return True


class _Served:
    """The engine at work, and the source that it follows."""

    def __init__(self, part: EnginePart, taken: tuple[int, str], role: EngineRole, loop: asyncio.AbstractEventLoop):
        self._taken, self._loop, self._part = taken, loop, part
        self._worker = Worker(part.engine, rest=REST_ON_CPU if _shares_processors() else 0.0)
        media = placed_chunk if part.engine.weights.has_vision else None
        name, version_of = f"{socket.gethostname()}:{os.getpid()}", lambda: self._worker.engine.version
        self.member = RunMember(name, EngineClient(self._worker), self._state, version_of, media, role.role)
        self._follower = WeightFollower(self._worker, part.source, say, self._take, WEIGHTS_SECONDS)

    def close(self) -> None:
        """Ends the engine's work; its memory is given back when another one is opened."""
        self._follower.stop()
        self._worker.stop()

    def _take(self) -> int:
        """Called on the follower's thread while the engine is held, so that the run learns of it before any token."""
        taken = self._part.take(None)

        def tell() -> None:
            self._taken = taken
            self.member.tell()

        self._loop.call_soon_threadsafe(tell)
        return taken[0]

    def _state(self) -> EngineState:
        if self._worker.failed is not None:
            raise UserError(f"the engine has failed: {self._worker.failed!r}")
        return EngineState(*self._taken, self._worker.busy_seconds, dataclasses.asdict(self._worker.stats()))


def _shares_processors() -> bool:
    """Whether the engine computes where sandboxes and verifiers may: on a CPU, of which it was not given a part."""
    return jax.default_backend() == "cpu" and len(os.sched_getaffinity(0)) == os.cpu_count()


def main(workdir: Path, ends_with_input: bool, role: str) -> NoReturn:
    """Runs an engine, or this process's part of one, until its run ends; ends the process."""
    try:
        code = processes.run_and_exit(lambda: follow(workdir, ends_with_input, role))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    os._exit(code)  # threads of jax may be at work
