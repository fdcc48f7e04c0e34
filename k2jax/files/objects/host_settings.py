"""What this machine gives to the reading of object stores: room on its disk, and requests. Its processes inherit it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from k2jax.errors import UserError, abbreviate

FOLDER = "K2JAX_STORE_CACHE"
GIGABYTES = "K2JAX_STORE_CACHE_GB"
REQUESTS = "K2JAX_STORE_REQUESTS"
RATE = "K2JAX_STORE_REQUESTS_PER_SECOND"
_DEFAULTS = {GIGABYTES: 50.0, REQUESTS: 16.0, RATE: 200.0}


class HostSettings(NamedTuple):
    """Limits of a machine.

    Attributes:
        folder: of the disk tier, on a disk of this machine.
        limit: what the disk tier may take [bytes].
        requests: most requests of one process at a time.
        per_second: most requests of one process that begin in a second.
    """

    folder: Path
    limit: int
    requests: int
    per_second: float


def host_settings() -> HostSettings:
    """The settings of the environment.

    Raises:
        UserError: one is no positive number.
    """
    folder = Path(os.environ.get(FOLDER) or "~/.cache/k2jax/store").expanduser()
    requests = int(max(1, _number(REQUESTS)))
    return HostSettings(folder, int(_number(GIGABYTES) * 1e9), requests, _number(RATE))


def _number(name: str) -> float:
    text = os.environ.get(name) or str(_DEFAULTS[name])
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise UserError(f"${name} is {abbreviate(text)}; give a positive number, such as {_DEFAULTS[name]:g}")
    return value
