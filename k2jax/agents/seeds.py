"""Random numbers of an episode as a function of the run's seed and the episode's place in the run."""

from __future__ import annotations

import hashlib
import struct


def derived_seed(seed: int, key: tuple[int, int, int], turn: int) -> int:
    """Seed in [0, 2^32) of one call of the model, a hash of the run's seed, (step, prompt, sample) and the turn."""
    digest = hashlib.sha256(struct.pack("<5q", seed, *key, turn)).digest()
    return int.from_bytes(digest[:4], "little")
