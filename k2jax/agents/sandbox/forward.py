"""Lets a command in a sandbox without network speak to one server of the host: through a Unix socket, as TCP inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from k2jax.agents.sandbox import forward_program
from k2jax.agents.sandbox.interpreter import host_python, loaded

_PROGRAM = Path(forward_program.__file__).read_text(encoding="utf-8")


def forwarded(argv: Sequence[str], socket_path: str, *, port: int, on_image: bool = False) -> list[str]:
    """A command that finds a server at ``127.0.0.1:port``, where it has nothing else.

    The server listens on a Unix socket of the host that the sandbox's user may write to, alone in a folder that the
    spec's ``read_only`` names, beside this program's own Python. Each command has its own loopback, so it needs this
    with each.

    Args:
        argv: the command.
        socket_path: of the server's socket.
        port: inside.
        on_image: whether the sandbox has an image; then its spec shows the host's ``/usr`` at ``HOST_USR``.
    """
    python = host_python().executable
    return [*(loaded(python) if on_image else [python]), "-I", "-S", "-c", _PROGRAM, str(port), socket_path, *argv]
