"""Sandboxes: where code that nobody trusts runs. It imports no jax."""

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
