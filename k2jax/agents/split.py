"""Which tasks are held out: a tenth of all possible prompts, by content, so that no run can train on one of them."""

from __future__ import annotations

from typing import Literal
import zlib

Split = Literal["train", "test"]
FileSplit = Literal["train", "test", "all"]
"""Of tasks that are read rather than drawn; ``all`` is for evaluation, and shares prompts with the others."""
HELD_OUT = 10
"""One of so many prompts is held out."""


def split_of(prompt: str) -> Split:
    """The split to which a prompt belongs, whatever the seed and the number of tasks: by its CRC-32."""
    return "test" if zlib.crc32(prompt.encode()) % HELD_OUT == 0 else "train"
