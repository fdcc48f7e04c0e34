"""What an engine counts."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Counters; the first six are states, the others only grow.

    ``preemptions`` are of sequences whose pages others needed: that new weights make the pages of all invalid does not
    count, as fewer sequences would not avoid it.

    The last three say how busy the slots were. ``decode_steps`` counts forward passes over one new id of each sequence
    that runs, ``decode_tokens`` the tokens that these gave and requests kept, and ``prefill_tokens`` the ids of prompts
    and of resumed or preempted requests that other passes computed. A pass over all slots gives ``slots`` tokens at
    most, so that ``decode_tokens / (slots * decode_steps)`` is the share of the slots that was used.
    """

    slots: int
    running: int
    waiting: int
    paused: int
    pages: int
    pages_in_use: int
    pages_cached: int
    tokens_generated: int
    prompt_tokens: int
    prompt_tokens_cached: int
    steps: int
    images_computed: int = 0
    preemptions: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
