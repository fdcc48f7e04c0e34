"""Servers of environments for tests, listed with their key as a user lists them."""

import asyncio
import contextlib
import os
from pathlib import Path
import tempfile

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.environments.remote_servers import VARIABLE
from k2jax.agents.environments.serve import EnvironmentServer, serving
from k2jax.agents.environments.serve_offer import Offer

KEY = "an-environment-key"
BEARER = {"Authorization": f"Bearer {KEY}"}


@contextlib.contextmanager
def listed(url, key=KEY):
    """The variable lists a server and a file with its key."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "environments.key"
        file.write_text(key)
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = f"{url}={file}"
        try:
            yield file
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


@contextlib.asynccontextmanager
async def served(offer=None, **options):
    """The address of a listed server, and the server."""
    server = EnvironmentServer(EnvironmentMaker(), KEY, offer or Offer(), **options)
    async with serving(server) as url:
        with listed(url):
            yield url, server


async def until(true):
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")
