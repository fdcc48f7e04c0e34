"""What every backend isolates on this machine, tried out."""

from __future__ import annotations

import asyncio
import time

from k2jax.errors import InfrastructureError, UserError
from k2jax.sandbox.backends import BACKENDS, make_backend
from k2jax.sandbox.types import Capabilities, SandboxSpec

_MEANING = {
    "network": {"none": "none: only its own loopback", "host": "the host's"},
    "memory": {
        "cgroup": "limited for all processes together (control group)",
        "rlimit": "limited for each process (address space; enough for Python, not for Node)",
        "none": "not limited",
    },
    "processes": {
        "cgroup": "limited for all together (control group)",
        "rlimit": "limited for all together (by user)",
        "none": "not limited",
    },
    "file_system": {"private": "its own, and /usr read-only", "host": "the host's, with this user's rights"},
    "snapshot": {True: "yes", False: "no"},
}


def check() -> tuple[str, bool]:
    """Tries every backend out.

    Returns:
        A report with a paragraph for each, and whether all of them work.
    """
    paragraphs, works = [], True
    for name in BACKENDS:
        try:
            backend = make_backend(name)
            milliseconds = asyncio.run(_one_command(name))
        except (UserError, InfrastructureError) as error:
            paragraphs.append(f"{name}: does not work: {error}")
            works = False
        else:
            paragraphs.append(_paragraph(name, backend.capabilities, milliseconds))
    return "\n\n".join(paragraphs), works


async def _one_command(name: str) -> float:
    """Time of opening a sandbox, running a command in it and closing it [ms]; the backend has started before."""
    backend = make_backend(name)
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        async with await backend.open(SandboxSpec()) as sandbox:
            result = await sandbox.exec(["/bin/sh", "-c", "echo works"])
        seconds = time.perf_counter() - begun
        if result.stdout != b"works\n":
            raise InfrastructureError(f"a command ended with code {result.code}: {result.stderr.decode()!a}")
    return 1e3 * seconds


def _paragraph(name: str, capabilities: Capabilities, milliseconds: float) -> str:
    lines = [f"{name}: works; {milliseconds:.0f} ms to open, run a command and close"]
    for field, value in capabilities._asdict().items():
        lines.append(f"  {field.replace('_', ' ')}: {_MEANING[field][value]}")
    return "\n".join(lines)
