"""Lets a command in a sandbox without network speak to one server of the host: through a Unix socket, as TCP inside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Self

from k2jax.agents.egress.allow_list import AllowList
from k2jax.agents.egress.egress_log import EgressLog
from k2jax.agents.sandbox import forward_program
from k2jax.agents.sandbox.interpreter import HOST_USR, host_python, loaded
from k2jax.agents.sandbox.types import HostPaths, MountedPath
from k2jax.errors import UserError

if TYPE_CHECKING:
    from k2jax.agents.egress.proxy import EgressProxy

_PROGRAM = Path(forward_program.__file__).read_text(encoding="utf-8")
EGRESS_PORT = 3128
"""Where commands find the proxy of their sandbox, on their own loopback."""
_PLACE = "/k2jax/egress"
_DIRECTLY = "127.0.0.1,localhost"


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


class Egress:
    """A sandbox's way to other machines: a proxy on this machine, and what its commands need to find it.

    Attributes:
        read_only: what the sandbox must show.
        env: variables of every command.
        log: of all requests.
    """

    def __init__(self, proxy: EgressProxy, *, on_image: bool):
        """Use ``open``."""
        self._proxy, self._on_image = proxy, on_image
        usr = (MountedPath("/usr", HOST_USR),) if on_image else ()
        self.read_only: HostPaths = (MountedPath(str(proxy.folder), _PLACE), *host_python().read_only, *usr)
        url = f"http://127.0.0.1:{EGRESS_PORT}"
        values = {"http_proxy": url, "https_proxy": url, "no_proxy": _DIRECTLY}
        self.env = values | {name.upper(): value for name, value in values.items()}

    @classmethod
    async def open(cls, allowed: AllowList, hosts: Sequence[str], *, on_image: bool) -> Self:
        """Opens the proxy of one sandbox.

        Args:
            allowed: what the user allows.
            hosts: what the sandbox asks for.
            on_image: see ``forwarded``.

        Raises:
            UserError: one of the hosts is not allowed, or the extra ``egress`` is not installed.
            InfrastructureError: the proxy cannot listen.
        """
        allowed.chosen(hosts)
        if importlib.util.find_spec("h11") is None:
            raise UserError('h11 is not installed, with which sandboxes reach hosts: pip install "k2jax[egress]"')
        module = await asyncio.to_thread(import_module, "k2jax.agents.egress.proxy")
        return cls(await module.EgressProxy.open(allowed, hosts), on_image=on_image)

    @property
    def log(self) -> EgressLog:
        """The requests of the sandbox that have ended."""
        return self._proxy.log

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command beside which a forwarder copies to the proxy."""
        return forwarded(argv, f"{_PLACE}/{self._proxy.socket}", port=EGRESS_PORT, on_image=self._on_image)

    async def close(self) -> None:
        """Ends every connection."""
        await self._proxy.close()
