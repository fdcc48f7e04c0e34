"""A run of two training processes and an engine, started and started again as a machine that looks after jobs does."""

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import re
import signal
import socket
import subprocess
import sys
import time
import uuid

from tests.rl.runs import ROOT
from tests.train.together import free_port

MARK = "K2JAX_TEST_RUN"
"""Environment variable that everything has that a run has started, whoever its parent is by now."""
END_SECONDS = 30.0
"""Time in which all processes end when one of them is lost."""
PATIENCE = 10.0
"""Time in which what they have started ends after them."""
WHOLE_SECONDS = 240.0
"""Time that a start may take to come to the end of the run."""
PROGRAM = """
import runpy
from k2jax import processes
start = processes.start
processes.start = lambda: (start(), print("connected", flush=True))
runpy.run_module("k2jax.rl", run_name="__main__", alter_sys=True)
"""
TRAINERS = ("controller", "follower")


class SupervisedRun:
    """The processes of a run; they are killed with ``kill``, and ``start`` starts those that are not there.

    Args:
        folder: of the run, its configuration file and what its processes print.
        flags: of the command.
        own: whether the run starts its engine itself.
        trainers: names of the processes that train; a run may have the controller alone.
    """

    def __init__(self, folder: Path, flags: list[str], own: bool, trainers: tuple[str, ...] = TRAINERS):
        self.folder, self.workdir, self.own, self.mark = folder, folder / "run", own, uuid.uuid4().hex
        self.flags = [*flags, f"--config.rl.engines.start={int(own)}"]
        self.flags += [f"--config.rl.engines.listen=127.0.0.1:{_free_ports()}"] if len(trainers) > 1 else []
        self.trainers = trainers
        self._processes: dict[str, subprocess.Popen] = {}
        self._starts, self._port, self.seconds, self._engine_seen = 0, 0, [], time.monotonic()

    def start(self) -> None:
        """Starts the trainers that are not there, and the engine where the run has none of its own."""
        if not any(name in self._processes for name in self.trainers):
            self._port = free_port()
        for name in (*self.trainers, *(() if self.own else ("engine",))):
            if name not in self._processes:
                self._start(name)

    def _start(self, name: str) -> None:
        self._starts += 1
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: self.mark}
        command = [sys.executable, "-m", "k2jax.rollout", "engine", f"--follow={self.workdir}"]
        if name in TRAINERS:
            if len(self.trainers) > 1:
                environment |= {
                    "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{self._port}",
                    "JAX_NUM_PROCESSES": str(len(self.trainers)),
                    "JAX_PROCESS_ID": str(TRAINERS.index(name)),
                }
            paths = [f"--config={self.folder / 'config.py'}", f"--workdir={self.workdir}"]
            command = [sys.executable, "-c", PROGRAM, *paths, *self.flags]
        log = self.folder / f"{name}-{self._starts}.log"
        with open(log, "w") as file:
            process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=file, stderr=file)
        process.log = log
        self._processes[name] = process

    def victims(self) -> dict[str, int]:
        """Pids by what they are."""
        found = {name: process.pid for name, process in self._processes.items() if process.poll() is None}
        own = [pid for pid in self.alive() if b"ends_with_input" in _command(pid)]
        return found | ({"engine": own[0]} if own else {})

    def alive(self) -> list[int]:
        """Pids of everything that the run has started and that has not ended."""
        mine = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    mine.append(int(path.name))
        return mine

    def has_ended(self) -> bool:
        """Whether a trainer has ended; an engine that has ended by itself long before is a fault."""
        if any(self._processes[name].poll() is not None for name in self.trainers):
            return True
        engine = self._processes.get("engine")
        if engine is None or engine.poll() is None:
            self._engine_seen = time.monotonic()
        assert time.monotonic() < self._engine_seen + END_SECONDS, self.log("engine")
        return False

    def log(self, name: str) -> str:
        """What a process has printed."""
        return self._processes[name].log.read_text()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Waits for what comes while all processes live."""
        end = time.monotonic() + WHOLE_SECONDS
        while not condition():
            assert time.monotonic() < end and not self.has_ended(), self.log("controller")
            time.sleep(0.05)

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to a process; one that is killed is no longer of the run."""
        self._processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self._processes.pop(name).wait()

    def ended(self, seconds: float) -> list[tuple[int, str]]:
        """Exit code of every trainer, which has to end in time, and what it has printed."""
        processes = [self._processes.pop(name) for name in self.trainers]
        return [(process.wait(seconds), process.log.read_text()) for process in processes]

    def mourn(self, victim: str) -> None:
        """What has to happen when a process was killed; then all that have ended can be started again."""
        since = time.monotonic()
        process = self._processes.pop(victim, None)
        if process is not None:
            process.wait()
        if victim == "engine":
            return
        [other] = [name for name in TRAINERS if name != victim]
        survivor = self._processes[other]
        if "connected" not in survivor.log.read_text() and survivor.poll() is None:
            return  # it waits for all processes to start
        code = survivor.wait(END_SECONDS)
        text, index = survivor.log.read_text(), TRAINERS.index(victim)
        del self._processes[other]
        self.seconds.append(time.monotonic() - since)
        if code == 0:  # both had done everything
            return
        assert code == 1, text
        assert re.search(rf"^error: (process \d: )?process {index} \(\S+\) does not respond", text, re.M), text
        self.assert_nothing_runs()

    def assert_nothing_runs(self) -> None:
        """Nothing that a run has started outlives it, but for engines that others have started."""
        end, kept = time.monotonic() + PATIENCE, {p.pid for n, p in self._processes.items() if n not in TRAINERS}
        while (left := set(self.alive()) - kept) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left, [_command(pid) for pid in left]

    def end(self) -> None:
        """Waits for a good end of all processes."""
        for name in [*self.trainers, *self._processes]:
            if (process := self._processes.pop(name, None)) is not None:
                assert process.wait(WHOLE_SECONDS) == 0, (name, process.log.read_text()[-3000:])
        self.assert_nothing_runs()

    def close(self) -> None:
        """Kills what is left."""
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        for process in self._processes.values():
            process.wait()


def _free_ports() -> int:
    """The first of three free ports in a row."""
    while True:
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as opened:
            first = free_port()
            for more in range(3):
                opened.enter_context(socket.create_server(("127.0.0.1", first + more)))
            return first


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
