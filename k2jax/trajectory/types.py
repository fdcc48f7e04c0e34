"""The token tree of one episode: each node stores only the tokens that it adds to its parent's path.

What was sampled is kept as the ids that the model sampled and is never encoded again from text. A single-turn answer is
a prompt node with one child; a context that is rewritten, compacted or forked is a branch from the last node it shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

ROOT = -1
NO_TURN = -1
NO_VERSION = -1
ITEMS = "items"
"""Key of a reward's ``info``: verdicts of the parts of an answer that are counted by themselves, lists by kind."""
_AGENT = ("role", "sub_agent")  # keys of metadata, see ``steps``
Status = Literal["unfinished", "finished", "truncated", "masked"]
Purpose = Literal["train", "eval", "budget"]


class Reward(NamedTuple):
    """What an episode was worth.

    Attributes:
        value: the number that is maximised.
        parts: named contributions to it, for logs.
        info: JSON values that explain the verdict to a reader.
    """

    value: float
    parts: Mapping[str, float] = {}
    info: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """The tokens that one call of a model, or one observation, adds to the tree.

    Attributes:
        parent: index of the node that they follow; ROOT for a node without one.
        tokens: int32 ``[T]``.
        mask: bool ``[T]``, whether the policy sampled the token and it may be trained on.
        logprobs: float32 ``[T]``, recorded at sampling under softmax(logits / temperature) [nats], over what a
            constraint allowed; 0 where not sampled.
        versions: int64 ``[T]``, of the weights that chose each token; NO_VERSION where not sampled.
        turn: number of the call of the model within the episode; NO_TURN for observations.
        temperature: at which the tokens were sampled; 1 for observations.
        finish: of a sampled node: ``stop``, ``length`` or ``cancelled``; empty for observations.
        message: the tokens as a message in OpenAI's format, for verifiers and readers; None where they are none.
        experts: int16 ``[T, expert layers, active experts]``, the experts that the tokens were routed to when they were
            sampled, or None.
        free_logprobs: float32 ``[T]``, ``logprobs`` over the whole vocabulary, where a constraint left less of it; else
            None.
    """

    parent: int
    tokens: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    _: dataclasses.KW_ONLY
    versions: np.ndarray
    turn: int = NO_TURN
    temperature: float = 1.0
    finish: str = ""
    message: Mapping[str, Any] | None = None
    experts: np.ndarray | None = None
    free_logprobs: np.ndarray | None = None

    @classmethod
    def observed(cls, parent: int, tokens: Sequence[int], message: Mapping[str, Any] | None = None) -> Node:
        """A node that the policy did not sample: a prompt, a tool's result, the format's own tokens."""
        count = len(tokens)
        return cls(
            parent,
            np.asarray(tokens, np.int32).reshape(count),
            np.zeros(count, np.bool_),
            np.zeros(count, np.float32),
            versions=np.full(count, NO_VERSION, np.int64),
            message=message,
        )


@dataclasses.dataclass(eq=False)
class Trajectory:
    """One episode of one task.

    Attributes:
        task: id of the task.
        domain: the task's domain tag.
        key: (step, prompt, sample): the order of training.
        nodes: in the order in which they were made; a parent comes before its children.
        status: ``finished``; ``truncated`` by a budget, which is scored and trained on; ``masked`` by an error of the
            infrastructure, which is neither; ``unfinished`` where it continues in a later iteration.
        reward: None until it is scored.
        error: why it is masked.
        metadata: JSON values.
        purpose: what the episode is for, see ``env.episode_key``; with ``key`` it names the episode in a run.
        spawned: its sub-episodes that have ended, by number; they are stored with it. None of their tokens is among
            this trajectory's.
    """

    task: str
    domain: str
    key: tuple[int, int, int]
    _: dataclasses.KW_ONLY
    nodes: list[Node] = dataclasses.field(default_factory=list)
    status: Status = "unfinished"
    reward: Reward | None = None
    error: str = ""
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    purpose: Purpose = "train"
    spawned: dict[int, Trajectory] = dataclasses.field(default_factory=dict)

    def add(self, node: Node) -> int:
        """Appends a node and returns its index.

        Raises:
            ValueError: its parent is no earlier node, or its arrays differ in length.
        """
        if not ROOT <= node.parent < len(self.nodes):
            raise ValueError(f"node {len(self.nodes)} has the parent {node.parent}, which is no earlier node")
        if len({len(node.tokens), len(node.mask), len(node.logprobs), len(node.versions)}) > 1:
            raise ValueError(f"node {len(self.nodes)} has arrays of different lengths")
        self.nodes.append(node)
        return len(self.nodes) - 1

    def path(self, node: int) -> list[int]:
        """Indices of the nodes from the root to a node, itself included."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    def path_tokens(self, node: int) -> np.ndarray:
        """Token ids int32 ``[T]`` from the root to the end of a node."""
        parts = [self.nodes[index].tokens for index in self.path(node)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def leaves(self) -> list[int]:
        """Indices of the nodes without children, ascending."""
        parents = {node.parent for node in self.nodes}
        return [index for index in range(len(self.nodes)) if index not in parents]

    @property
    def about(self) -> dict[str, Any]:
        """What exported records say of it, as JSON: ``task``, ``domain``, ``key`` and the value of the ``reward``.

        Of a sub-episode also its ``role``, and its name as a ``sub_agent`` where it has one.
        """
        reward = None if self.reward is None else self.reward.value
        agent = {key: self.metadata[key] for key in _AGENT if key in self.metadata}
        return {"task": self.task, "domain": self.domain, "key": list(self.key), "reward": reward, **agent}

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return int(sum(node.mask.sum() for node in self.nodes))

    @property
    def answer(self) -> str:
        """Text content of the last sampled message; empty where there is none."""
        sampled = [node.message for node in self.nodes if node.turn != NO_TURN and node.message is not None]
        return str(sampled[-1].get("content") or "") if sampled else ""
