"""Sampled conversations with images: the ids that were sampled, and the images of the messages between them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from k2jax.data.split import document_hash
from k2jax.text.media_reading import NO_PAD
from k2jax.trajectory.answers import is_answer
from k2jax.trajectory.filters import DemonstratedPath


@dataclasses.dataclass(frozen=True)
class SampledConversation:
    """A path of a trajectory, whose ids stay as they are.

    Attributes:
        ids: int32 ``[tokens]``.
        trained: bool ``[tokens]``, whether each is a target.
        written: bool ``[tokens]``, whether the model wrote it: where it is a pad, no image stands for it.
        messages: what was shown, in order; its images are data URLs.
    """

    ids: np.ndarray
    trained: np.ndarray
    written: np.ndarray
    messages: list[Any]
    permitted: tuple[str, ...] = ()

    @property
    def shown_T(self) -> np.ndarray:
        """The ids of what was shown, ``NO_PAD`` elsewhere."""
        return np.where(self.written, NO_PAD, self.ids)

    @property
    def digest(self) -> int:
        """Decides the split: all answers to one first message, its images included, are on one side."""
        prompt = self.ids[: int(np.argmax(self.written))].astype("<i4").tobytes()
        return document_hash(prompt + json.dumps(self.messages[:1]).encode())

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        arrays = {name: getattr(self, name).tolist() for name in ("ids", "trained", "written")}
        return arrays | {"messages": self.messages}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> SampledConversation:
        """Of ``to_json``."""
        marks = (np.array(record[name], np.bool_) for name in ("trained", "written"))
        return cls(np.array(record["ids"], np.int32), *marks, record["messages"])


def sampled_conversation(demonstrated: DemonstratedPath) -> SampledConversation:
    """The conversation of a demonstrated path."""
    trajectory, row = demonstrated
    path = dict.fromkeys(row.nodes.tolist())
    messages = [trajectory.nodes[index].message for index in path if not is_answer(trajectory, index)]
    shown = [message for message in messages if message is not None]
    return SampledConversation(row.tokens, row.mask, demonstrated.written, shown)
