"""The servers of environments that the user knows, each with the file of its key.

Tasks are data: they are stored, handed on and read from files of others. So a task names an address, and neither a key
nor a file; and only addresses that the user has listed are connected to.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
import shlex

from k2jax.client.keys import stored_key
from k2jax.errors import UserError, abbreviate

VARIABLE = "K2JAX_ENVIRONMENT_KEYS"
"""Environment variable with ``URL=FILE`` for each server, separated by spaces; the file holds the server's key."""
_URL = re.compile(r"wss?://[^\s/?#@=]+(/[^\s?#@=]*)?")


def is_server_url(text: str) -> bool:
    """Whether a text is the address of a server of environments."""
    return _URL.fullmatch(text) is not None


def server_key(url: str) -> str:
    """The key of a server.

    Args:
        url: compared with the listed ones as it is written.

    Raises:
        UserError: the user has not listed the server, or its file holds no key.
    """
    files = _listed(os.environ.get(VARIABLE, ""))
    if url not in files:
        raise UserError(
            f"the task's environment is on a server that is not listed here; if you trust {abbreviate(url)}, "
            f"set {VARIABLE}='URL=FILE' to its address as written there and the file with its key"
        )
    return stored_key(Path(files[url]).expanduser())


def _listed(text: str) -> dict[str, str]:
    try:
        entries = [entry.partition("=") for entry in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"{VARIABLE} cannot be read: {str(error).lower()}") from None
    for number, (url, _, file) in enumerate(entries, 1):  # a user may have put a key there, so it is not shown
        if not is_server_url(url) or not file:
            raise UserError(f"entry {number} of {VARIABLE} is not of the form ws://HOST:PORT=FILE")
    return {url: file for url, _, file in entries}
