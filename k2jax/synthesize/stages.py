"""What a stage of a pipeline is: records in, records out, and a reason for each that leaves."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import hashlib
import json
from typing import Any, NamedTuple

Record = Mapping[str, Any]
"""A JSON object."""


class DroppedError(Exception):
    """A record leaves the pipeline: the reason, in a few words that are the same for all records that leave for it."""


class Made(NamedTuple):
    """What a stage made of a record, or of all of them.

    Attributes:
        kept: records for the next stage.
        dropped: ``(reason, record)`` of those that leave.
    """

    kept: list[Record]
    dropped: list[tuple[str, Record]] = []  # noqa: RUF012


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesisStage:
    """A step of a pipeline.

    Attributes:
        name: of it, in the pipeline's folder and funnel.
        maker: path ``module:attribute``. Called with ``options`` it makes a function: of a stage of single records
            ``async (record, asker) -> Made``, of one of all records ``(records) -> Made``.
        options: of the maker, JSON values.
        version: of what it does; another one makes all of its records again.
        roles: of the models that it asks, see ``settings``.
        is_whole: whether it sees all records at once, as near-duplicates need.
    """

    name: str
    maker: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    version: int = 1
    roles: tuple[str, ...] = ()
    is_whole: bool = False


def content_key(*parts: Any) -> str:
    """A hash of JSON values, by which what was made of them is found again."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


def seed_of(*parts: Any) -> int:
    """A seed in [0, 2**31) that depends on JSON values alone."""
    return int(content_key(*parts)[:8], 16) % 2**31
