"""Counts in the structure of JPEG and TIFF files: work that a small file can ask for, known before it is decoded."""

from __future__ import annotations

import re
import struct

MOST_SCANS = 200
"""Scans of a JPEG, each of which is decoded over the whole image; encoders write about ten."""
MOST_STRIPS = 100_000
"""Strips or tiles of a TIFF, each of which is an object of Pillow's when the file is opened."""
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither a stuffed byte, nor a restart, nor a fill byte
_START_OF_IMAGE, _END_OF_IMAGE, _START_OF_SCAN = 0xD8, 0xD9, 0xDA
_OFFSETS = (273, 324)  # StripOffsets, TileOffsets


def excess(data: bytes) -> str | None:
    """Says what a JPEG or TIFF has more of than is decoded; None for all other files."""
    if data.startswith(b"\xff\xd8"):
        return f"{scans} scans; at most {MOST_SCANS} are decoded" if (scans := jpeg_scans(data)) > MOST_SCANS else None
    strips = tiff_strips(data)
    return f"{strips:,} strips or tiles; at most {MOST_STRIPS:,} are decoded" if strips > MOST_STRIPS else None


def jpeg_scans(data: bytes) -> int:
    """Scans of a JPEG up to its end, or to one more than ``MOST_SCANS``."""
    scans, place = 0, 0
    while scans <= MOST_SCANS and (match := _MARKER.search(data, place)):
        marker, place = data[match.start() + 1], match.end()
        if marker == _END_OF_IMAGE:
            break
        if marker not in (1, _START_OF_IMAGE):  # these two have no content
            scans += marker == _START_OF_SCAN
            place += max(2, int.from_bytes(data[place : place + 2], "big"))
    return scans


def tiff_strips(data: bytes) -> int:
    """Strips or tiles of a TIFF's first directory; 0 for other files.

    A file that says it is a BigTIFF is read as one and as a plain one: Pillow 13 takes those with the larger byte first
    for plain.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or data[2:4].strip(b"\0") not in (b"*", b"+"):
        return 0
    return max(_strips(data, order, big) for big in {False, b"+" in data[2:4]})


def _strips(data: bytes, order: str, big: bool) -> int:
    first, many, entry = ("Q", "Q", "HHQQ") if big else ("I", "H", "HHII")
    try:
        [start] = struct.unpack_from(order + first, data, 8 if big else 4)
        [entries] = struct.unpack_from(order + many, data, start)
        start += struct.calcsize(order + many)
        size = struct.calcsize(order + entry)
        directory = struct.iter_unpack(order + entry, data[start : start + min(entries, len(data) // size) * size])
        return max((count for tag, _, count, _ in directory if tag in _OFFSETS), default=0)
    except struct.error:  # cut off, or begins nowhere; decoding says so
        return 0
