"""An ASGI application that listens on a free port of this machine, in a thread."""

from collections.abc import Callable, Iterator
import contextlib
import socket
import threading
from typing import Any

import uvicorn

from k2jax.agents.web.server import server_config


@contextlib.contextmanager
def served(
    app: Callable, *limits: Any, force: bool = False, at_end: Callable = lambda: None, **options: Any
) -> Iterator:
    """The address, a pair of host and port, until the end of the block.

    Args:
        app: the application.
        *limits: of ``server_config``, and ``options`` too.
        force: whether the end waits for no connection.
        at_end: called when the server has been told to end.
    """
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(app, *limits, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield sock.getsockname()
    finally:
        server.should_exit, server.force_exit = True, force
        at_end()
        thread.join(10)
