"""Zeros that take no memory before they are written: the system clears each page of them when it is first used.

``jnp.zeros`` of a gigabyte writes it all, which costs a start on a CPU half a second or more of page faults, and keeps
a gigabyte from other processes, however little of the array is ever used. NumPy's zeros are lazy, but XLA copies them
when they are donated, since it does not own them. Here XLA allocates, and the pages of what it allocates are given back
to the system, which gives zeros for them as soon as they are touched.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import jax
from jax import Array
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import Sharding
import numpy as np

_DONTNEED = 4  # MADV_DONTNEED of Linux: the next access to a private page finds zeros


def lazy_zeros(shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> Array:
    """Zeros on one device, a CPU. XLA owns them, so a program to which they are donated writes in place."""
    return jax.jit(buffer_callback(_clear, jax.ShapeDtypeStruct(shape, dtype)), out_shardings=sharding)()


def _clear(context: Any, out: Any) -> None:
    """Fills what XLA has allocated with zeros."""
    octets = np.asarray(out).reshape(-1).view(np.uint8)
    first = -octets.ctypes.data % mmap.PAGESIZE
    stop = first + (len(octets) - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop <= first or not _release(octets[first:stop]):
        first = stop = 0
    octets[:first] = 0
    octets[stop:] = 0


def _release(pages: np.ndarray) -> bool:
    """Gives whole pages of private memory back to the system, if it is one that then gives zeros for them."""
    if sys.platform != "linux":
        return False
    address, size = ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(len(pages))
    return ctypes.CDLL(None).madvise(address, size, _DONTNEED) == 0
