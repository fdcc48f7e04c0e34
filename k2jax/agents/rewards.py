"""What a verifier returned, as a reward that can be logged, sent and trained on."""

from __future__ import annotations

import json
import math
from numbers import Real
from typing import Any

import numpy as np

from k2jax.errors import abbreviate
from k2jax.trajectory import Reward

MOST_INFO = 1 << 16
"""Characters of a reward's ``info`` as JSON: it goes into logs, and may quote an answer of any size."""
LARGEST = 1e6
"""Largest size of a reward: one of 1e300 is a verifier's mistake, and would overflow in advantages and losses."""
_MOST_PARTS = 1000
_LONGEST_NAME = 200


def checked_reward(reward: Any) -> dict[str, Any]:
    """The fields of a reward, as JSON values of a bounded size.

    Args:
        reward: a Reward, or a number alone. An ``info`` of more than ``MOST_INFO`` characters is replaced by
            ``{"left_out": number of characters}``.

    Raises:
        ValueError: it is none, not of finite numbers, or larger than ``LARGEST``.
        TypeError: its ``info`` is no JSON.
    """
    reward = reward if isinstance(reward, Reward) else Reward(reward)
    numbers = [reward.value, *reward.parts.values()]
    if not all(_is_finite(number) for number in numbers):
        raise ValueError(f"no reward of finite numbers: {abbreviate(reward)}")
    if abs(reward.value) > LARGEST:
        raise ValueError(f"a reward of {float(reward.value):g}; rewards are at most {LARGEST:g} in size")
    if len(reward.parts) > _MOST_PARTS or any(len(name) > _LONGEST_NAME for name in reward.parts):
        raise ValueError(f"a reward of more than {_MOST_PARTS} parts, or names of more than {_LONGEST_NAME} characters")
    parts = {name: float(part) for name, part in reward.parts.items()}
    length = len(json.dumps(reward.info, allow_nan=False))
    info = dict(reward.info) if length <= MOST_INFO else {"left_out": length}
    return {"value": float(reward.value), "parts": parts, "info": info}


def _is_finite(number: Any) -> bool:
    try:
        return isinstance(number, Real | np.bool_) and math.isfinite(number)
    except OverflowError:  # an integer beyond every float
        return False
