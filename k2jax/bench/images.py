"""Sandboxes on an image: starts against those on the host's programs, memory of a thousand, and a fresh overlay.

The image has a shell and a gibibyte of data, which all sandboxes share. A start opens a new sandbox, runs the shell in
it and closes it; those on the host's programs are not used again. Each of a thousand live sandboxes has changed a file
of the image; beside what they take together stands a copy of the image for each. A fresh overlay is a sandbox that is
closed and opened again, beside the start of one with its command.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
import shutil
import statistics
import subprocess
import tempfile
import time

from k2jax.agents.sandbox import Limits, SandboxSpec
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox.mount_namespace import NOBODY
from k2jax.bench.sandbox import available_memory
from k2jax.bench.timing import Row, cost_row
from k2jax.errors import UserError

_IMAGE = "image"
_DATA = 1 << 30
_LIVE = 1000
_STARTS = 30
"""Starts of one round, one after the other."""
_CHUNK = 1 << 20


def measure(rounds: int = 10) -> list[Row]:
    """Rows of starts, of a thousand sandboxes, and of fresh overlays."""
    with tempfile.TemporaryDirectory(prefix="k2jax-images-", dir="/var/tmp") as folder:
        _make_image(Path(folder, _IMAGE))
        return asyncio.run(_measure(folder, rounds))


async def _measure(folder: str, rounds: int) -> list[Row]:
    backend, device = BubblewrapBackend(images=folder, forks=False), f"{os.cpu_count()} processors"
    limits = Limits(memory=64 << 20, processes=16)
    specs = {"host": SandboxSpec(limits=limits), "image": SandboxSpec(image=_IMAGE, limits=limits)}
    try:
        times: dict[str, list[float]] = {"host": [], "image": [], "fresh": []}
        for number in range(rounds + 1):
            for name in specs if number % 2 else reversed(specs):
                times[name].append(await _starts(backend, specs[name]))
            times["fresh"].append(await _resets(backend, specs["image"]))
        host, image, fresh = (1e3 * statistics.median(each[1:]) for each in times.values())
        disk, memory = await _live(backend, specs["image"])
    finally:
        backend.close()
    live = f"{_LIVE} live sandboxes, with {memory:.1f} GiB of memory"
    return [
        cost_row("start on an image of 1 GiB", image, host, "ms", "on the host's programs", device=device),
        cost_row("fresh overlay: close and open", fresh, image, "ms", "a start with its command", device=device),
        cost_row(live, disk, _LIVE * _DATA / 2**30, "GiB of disk", "copies", device=device),
    ]


async def _starts(backend: BubblewrapBackend, spec: SandboxSpec) -> float:
    """Time of one start, over some of them [s]."""
    begun = time.perf_counter()
    for _ in range(_STARTS):
        async with await backend.open(spec) as sandbox:
            if (await sandbox.exec(["/bin/sh", "-c", f"echo x > {'/etc' if spec.image else '/work'}/x"])).code:
                raise UserError("a shell does not run in a sandbox here: see python -m k2jax.sandbox check")
    return (time.perf_counter() - begun) / _STARTS


async def _resets(backend: BubblewrapBackend, spec: SandboxSpec) -> float:
    """Time in which a sandbox that is closed is open again, without its changes [s]."""
    sandbox, seconds = await backend.open(spec), 0.0
    for _ in range(_STARTS):
        await sandbox.exec(["/bin/sh", "-c", "echo x > /etc/x"])
        begun = time.perf_counter()
        await sandbox.close()
        sandbox = await backend.open(spec)
        seconds += time.perf_counter() - begun
    await sandbox.close()
    return seconds / _STARTS


async def _live(backend: BubblewrapBackend, spec: SandboxSpec) -> tuple[float, float]:
    """Disk that a thousand sandboxes take together with their image, and memory [GiB]."""
    memory, disk = available_memory(), shutil.disk_usage("/var/tmp").used
    sandboxes = []
    try:
        for _ in range(_LIVE):
            sandboxes.append(await backend.open(spec))
            await sandboxes[-1].write("/etc/changed", b"x" * 4096)
        more = shutil.disk_usage("/var/tmp").used - disk
        return (_DATA + more) / 2**30, (memory - available_memory()) / 2**30
    finally:
        for sandbox in sandboxes:
            await sandbox.close()


def _make_image(root: Path) -> None:
    """A shell with what it is linked to, and data that nothing compresses."""
    listing = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    for name in ("/bin/sh", *(word for word in listing.split() if word.startswith("/"))):
        copy = root / name.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(name), copy)
    (root / "etc").mkdir()
    with open(root / "data", "wb") as file:
        for _ in range(_DATA // _CHUNK):
            file.write(os.urandom(_CHUNK))
    if os.geteuid() == 0:
        for folder, _, files in os.walk(root):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                os.chown(path, NOBODY, NOBODY)
