"""What a backend isolates on this machine: what it promises, what the kernel says, and what attacks achieve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import functools
import os
import time
from typing import Any

from k2jax.agents.sandbox.attacks import ATTACKS, Attack
from k2jax.agents.sandbox.backends import BACKENDS, make_backend
from k2jax.agents.sandbox.exhaustion import COUNTED, exhausted
from k2jax.agents.sandbox.hostile import LIMITS, Outside, attempt
from k2jax.agents.sandbox.interpreter import HostPython, host_python
from k2jax.agents.sandbox.namespaces import NamespaceBackend
from k2jax.agents.sandbox.types import Capabilities, SandboxBackend, SandboxSpec
from k2jax.errors import InfrastructureError, UserError

_ABOUT = "Says what a backend of sandboxes isolates on this machine, and attacks it."
_MEANING = {
    "network": {"none": "none: only its own loopback", "host": "the host's", "gateway": "the gateway alone"},
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
    "residents": {True: "programs can stay between commands", False: "no program stays after its command"},
}


_PROBE = """
import os
status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
print('seccomp', {'0': 'no filter', '1': 'strict', '2': 'filter'}[status['Seccomp'].strip()])
print('privileges', 'none can be gained' if status['NoNewPrivs'].strip() == '1' else 'can be gained',
      '- capabilities', status['CapEff'].strip().lstrip('0') or 'none', '- user', os.getuid())
for kind in ('user', 'pid', 'mnt', 'net', 'ipc', 'uts', 'cgroup'):
    try: print(kind, os.readlink('/proc/self/ns/' + kind))
    except OSError: print(kind, '?')
"""


def check(name: str = "bubblewrap", *, attacks: bool = True, say: Callable[[str], None] = print) -> bool:
    """Tries a backend out, and says what it finds, a line each.

    Args:
        name: of the backend.
        attacks: whether to run the list of attacks too.
        say: takes the lines.

    Returns:
        Whether the backend works and every attack was contained.
    """
    try:
        backend = make_backend(name)
        return asyncio.run(_check(name, backend, attacks, say))
    except (UserError, InfrastructureError) as error:
        say(f"{name}: does not work: {error}")
        return False


async def _check(name: str, backend: SandboxBackend, attacks: bool, say: Callable[[str], None]) -> bool:
    local = isinstance(backend, NamespaceBackend) or name == "unsafe"
    python = host_python() if local else HostPython(backend.options.python, ())
    spec = SandboxSpec(read_only=python.read_only, limits=LIMITS)
    await _one_command(backend, spec)  # starts what the backend needs
    milliseconds = await _one_command(backend, spec)
    say(f"{name}: works; {milliseconds:.0f} ms to open, run a command and close")
    if isinstance(backend, NamespaceBackend):
        say(f"  program: {backend.program}")
    _say_capabilities(backend.capabilities, say)
    async with await backend.open(spec) as sandbox:
        probe = await sandbox.exec([python.executable, "-I", "-S", "-c", _PROBE])
    _say_kernel(probe.stdout.decode(errors="replace"), local, say)
    if name == "unsafe":
        say("  attacks: not tried, because nothing would contain them")
        return True
    return await _attack(backend, spec, python.executable, say) if attacks else True


async def _one_command(backend: SandboxBackend, spec: SandboxSpec) -> float:
    """Time of opening a sandbox, running a command in it and closing it [ms]."""
    begun = time.perf_counter()
    async with await backend.open(spec) as sandbox:
        result = await sandbox.exec(["/bin/sh", "-c", "echo works"])
    if result.stdout != b"works\n":
        raise InfrastructureError(
            f"a command ended with code {result.code}: {result.stderr.decode(errors='replace')!a}"
        )
    return 1e3 * (time.perf_counter() - begun)


def _say_capabilities(capabilities: Capabilities, say: Callable[[str], None]) -> None:
    for field, value in capabilities._asdict().items():
        say(f"  {field.replace('_', ' ')}: {_MEANING[field][value]}")


def _say_kernel(probe: str, local: bool, say: Callable[[str], None]) -> None:
    """What a command saw of itself; on this machine its namespaces are compared with the host's."""
    lines = dict(line.partition(" ")[::2] for line in probe.splitlines())
    for name in ("seccomp", "privileges"):
        say(f"  {name}: {lines.pop(name, 'unknown')}")
    if local:
        own = [kind for kind, there in lines.items() if there != _namespace(kind)]
        say(f"  namespaces of its own: {', '.join(own) or 'none'}")


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return "?"


async def _attack(backend: SandboxBackend, spec: SandboxSpec, python: str, say: Callable[[str], None]) -> bool:
    async def attacked(attack: Attack) -> str:
        with Outside() as outside:
            async with await backend.open(spec) as sandbox:
                return await attempt(attack, sandbox, outside, python=python, left=left)

    left, tried = set, {name: functools.partial(attacked, attack) for name, attack in ATTACKS.items()}
    if isinstance(backend, NamespaceBackend):  # its sandboxes are processes of one user of this machine
        left = backend.running
        for kind in COUNTED:
            tried[f"all {kind} taken"] = functools.partial(exhausted, kind, backend, spec, python)
    contained = 0
    for name, attempted in tried.items():
        begun = time.perf_counter()
        try:
            how = await attempted()
        except InfrastructureError as error:
            how = f"the sandbox failed: {error}"
        contained += not how
        verdict = f"NOT CONTAINED, {how}" if how else "contained"
        say(f"  {name}: {verdict} ({time.perf_counter() - begun:.1f} s)")
    say(f"  {contained} of {len(tried)} attacks contained")
    return contained == len(tried)


def add_check(commands: Any) -> None:
    """Adds the command ``check`` to those of ``python -m k2jax.sandbox``."""
    parser = commands.add_parser("check", help="say what a backend isolates here, and attack it", description=_ABOUT)
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="bubblewrap", help="which (default: bubblewrap)")
    parser.add_argument("--no-attacks", action="store_true", help="only say what it isolates")
    parser.set_defaults(run=lambda arguments: 0 if check(arguments.backend, attacks=not arguments.no_attacks) else 1)
