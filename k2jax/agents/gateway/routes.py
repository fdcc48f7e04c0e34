"""How an agent in a sandbox reaches its rollout: by a socket of this machine, or by an address of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
import contextlib
import os
from pathlib import Path
import re
import socket
import tempfile
from typing import NamedTuple

from k2jax.agents.gateway.agent_episode import AgentEpisode
from k2jax.agents.gateway.app import make_gateway_app
from k2jax.agents.gateway.listener import ListenAddress, listening
from k2jax.agents.gateway.socket import rollout_socket
from k2jax.agents.sandbox.types import Capabilities
from k2jax.errors import UserError

PORT = 8080
"""Where an agent finds the gateway by a socket, on the loopback of its own sandbox."""
_PORT = re.compile(r"\bPORT\b")
_SOCKETS = "/var/tmp"  # folders of sockets; shown at the same place, which a sandbox's own /tmp would hide


class GatewayRoute(NamedTuple):
    """A way to a rollout.

    Attributes:
        base: URL inside the sandbox, below which the rollout answers.
        socket: of this machine, to which the agent's loopback is forwarded; None where the URL is reached as it is.
    """

    base: str
    socket: Path | None = None


class ClusterAddress(NamedTuple):
    """An address at which all rollouts of a process answer, each below a path of its own and with a key of its own.

    Attributes:
        listen: where this process listens.
        url: how sandboxes reach it; the word PORT stands for the port.
    """

    listen: ListenAddress
    url: str

    @classmethod
    def read(cls, listen: str, url: str) -> ClusterAddress | None:
        """Reads the options of a scaffold; None where both are empty.

        Raises:
            UserError: ``listen`` is no address, or ``url`` stands alone.
        """
        if not listen:
            if url:
                raise UserError(f"url={url} says how sandboxes reach an address; say with listen=HOST:PORT which")
            return None
        address = ListenAddress.read(listen)
        return cls(address, (url or f"http://{_reached_at(address)}:PORT").removesuffix("/"))

    @contextlib.asynccontextmanager
    async def open(self, episode: AgentEpisode) -> AsyncIterator[GatewayRoute]:
        """Serves a rollout there until the end of the block.

        Raises:
            UserError: no port is free.
        """
        path = episode.access.path
        async with listening(self.listen, path, make_gateway_app(episode.gateway)) as port:
            yield GatewayRoute(_PORT.sub(str(port), self.url) + path)

    def check(self, capabilities: Capabilities) -> None:
        """Refuses sandboxes that reach no address.

        Raises:
            UserError: theirs do not.
        """
        if capabilities.network == "none":
            raise UserError(
                f"sandboxes of this kind reach no address, not even {self.url}: leave listen= out on this machine, or "
                "say with gateway=LABEL=VALUE:PORT behind kubernetes which pods its sandboxes may reach"
            )


@contextlib.asynccontextmanager
async def own_socket(episode: AgentEpisode) -> AsyncIterator[GatewayRoute]:
    """Serves a rollout on a socket that is alone in its folder, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="k2jax-", dir=_SOCKETS) as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "gateway"
        async with rollout_socket(make_gateway_app(episode.gateway), episode.access.path, file):
            yield GatewayRoute(f"http://127.0.0.1:{PORT}{episode.access.path}", file)


def _reached_at(address: ListenAddress) -> str:
    """The host of an address as others reach it: of a pod that listens at all of its interfaces, its own."""
    if not address.is_any:
        return f"[{address.host}]" if ":" in address.host else address.host
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        raise UserError(
            f"listen={address.host}:{address.first} is every interface, and this machine does not know its own "
            "address; say with url=http://HOST:PORT which sandboxes use"
        ) from None
