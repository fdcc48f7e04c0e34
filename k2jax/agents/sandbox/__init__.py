"""Sandboxes: where code that nobody trusts runs. It imports no jax.

In reading order: ``types`` (the interface), ``backends`` (by name), ``task_limits``,
``folder`` and ``files`` (what all have in common),
``namespaces`` with ``bubblewrap`` and ``nsjail`` (this machine), ``kubernetes``, ``e2b`` and ``remote`` (others),
``unsafe`` (no isolation, only when named).

Below: ``spawner``, ``spawner_client``, ``child_process``, ``launcher``, ``mount_namespace``, ``mounts``, ``cgroup``,
``seccomp``, ``warden`` and ``counted_namespace`` (how a sandbox starts and ends), ``process``, ``running_command``,
``python_worker`` and ``python_program`` (programs that stay), ``forward`` (the way to a gateway), ``interpreter``,
``images``; ``check``, ``attacks``, ``hostile`` and ``exhaustion``.
"""

from k2jax.agents.sandbox.types import (
    Capabilities,
    ExecResult,
    HostPaths,
    Limits,
    MountedPath,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)

__all__ = [
    "Capabilities",
    "ExecResult",
    "HostPaths",
    "Limits",
    "MountedPath",
    "Sandbox",
    "SandboxBackend",
    "SandboxError",
    "SandboxSpec",
]
