"""Arrays as files that say when a disk is full."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np


def write_array(file: BinaryIO, array: np.ndarray) -> None:
    """Writes an array byte for byte as ``np.save`` does, which hands its data to a stream of C.

    That stream loses what a full disk answers: of less than a page nothing is raised and the file is cut, and of more
    the error has no number by which it could be known.

    Args:
        file: is open for writing.
        array: of numbers or records; one that does not lie in C's order is written in it.

    Raises:
        OSError: there is no room.
    """
    array = np.asarray(array, order="C")
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    write_numbers(file, array)


def write_numbers(file: BinaryIO, array: np.ndarray) -> None:
    """Writes the numbers of an array alone, as ``ndarray.tofile`` does; errors as of ``write_array``."""
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
