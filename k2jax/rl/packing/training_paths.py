"""What is trained on of a trajectory: paths from a root towards a leaf, and which tokens count in which response.

A token that paths share counts in one of two ways. With ``unique`` a trajectory is one response, and each of its
sampled tokens counts once, on the first path that holds it: the policy gradient of the episode's reward. With ``paths``
every path that holds sampled tokens is a response of its own, as if it had been the whole episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from k2jax.agents.paths import path_media
from k2jax.batch import NO_EXPERTS
from k2jax.config.schema import Config, SharedTokens
from k2jax.inference.media import PlacedChunk
from k2jax.text.media_reading import MediaReader
from k2jax.trajectory import Trajectory

Routes = tuple[int, int]
"""Expert layers and active experts of the model."""


def replayed_routes(config: Config) -> Routes | None:
    """The routes of the model of a config that replays recorded experts; None where the router chooses."""
    if config.rl.rollout.routing != "replay":
        return None
    return config.model.layers - config.model.dense_layers, config.model.moe.active_experts


class TrainingSample(NamedTuple):
    """A trajectory to train on, how much better it was than its group, and the number of its class of tasks."""

    trajectory: Trajectory
    advantage: float
    domain: int = 0


class TrainingPath(NamedTuple):
    """The tokens from a root to the last sampled node above a leaf.

    Attributes:
        record_TN: int32 ``[T, 4]``, of each token: its id, whether the policy sampled it, and the bits of its recorded
            log-probability and temperature; ``[T, 6]`` where the policy sees images, with the first 8 bytes of the
            digest of the image that the token stands for. Tokens behind equal records are one token to the loss.
        counted_T: bool ``[T]``, the sampled tokens that count in the path's response.
        turns: indices of the first and the last counted token of every turn.
        nodes: the path's nodes in its trajectory.
        experts_TLK: int16, the experts that were recorded of each token, NO_EXPERTS where none were; None where they
            are not replayed.
        media: images among the tokens.
    """

    record_TN: np.ndarray
    counted_T: np.ndarray
    turns: list[tuple[int, int]]
    nodes: Sequence[int]
    experts_TLK: np.ndarray | None = None
    media: Sequence[PlacedChunk] = ()

    def __len__(self) -> int:
        return len(self.record_TN)

    @property
    def tokens_T(self) -> np.ndarray:
        """Token ids, int32 ``[T]``."""
        return self.record_TN[:, 0]

    @property
    def logprobs_T(self) -> np.ndarray:
        """Recorded log-probabilities, float32 ``[T]`` [nats]."""
        return np.ascontiguousarray(self.record_TN[:, 2]).view(np.float32)

    @property
    def temperatures_T(self) -> np.ndarray:
        """Temperatures of sampling, float32 ``[T]``."""
        return np.ascontiguousarray(self.record_TN[:, 3]).view(np.float32)


class TrainingResponse(NamedTuple):
    """What counts together in a loss: sampled tokens of some paths of one trajectory, with one advantage.

    Attributes:
        trajectory: the trajectory.
        advantage: of the trajectory.
        domain: number of its class of tasks.
        paths: at least one; each of them holds tokens that count.
    """

    trajectory: Trajectory
    advantage: float
    domain: int
    paths: list[TrainingPath]

    @property
    def group(self) -> tuple[int, int]:
        """The trajectory's prompt: (step, prompt)."""
        return self.trajectory.key[:2]

    @property
    def turns(self) -> int:
        """Number of turns that count."""
        return sum(len(path.turns) for path in self.paths)

    @property
    def tokens(self) -> int:
        """Number of tokens that count."""
        return int(sum(path.counted_T.sum() for path in self.paths))


def training_responses(
    sample: TrainingSample,
    shared_tokens: SharedTokens,
    routes: Routes | None = None,
    reader: MediaReader | None = None,
) -> list[TrainingResponse]:
    """The responses of a trajectory, in the order of its leaves; none where nothing was sampled.

    Args:
        sample: the trajectory.
        shared_tokens: how a sampled token that paths share counts.
        routes: of the model, where recorded experts are replayed.
        reader: reads the images of messages; None for a model of text alone.

    Raises:
        UserError: an image cannot be read, or is not the one for which the recorded tokens stand.
    """
    trajectory, counted, paths = sample.trajectory, set(), []
    about = (trajectory, sample.advantage, sample.domain)
    for leaf in trajectory.leaves():
        path = trajectory.path(leaf)
        new = [index for index in path if index not in counted and trajectory.nodes[index].mask.any()]
        if new:  # what follows the last of them trains nothing, and may be as long as a tool likes
            paths.append(_path(trajectory, path[: 1 + path.index(new[-1])], set(new), routes, reader))
        if shared_tokens == "unique":
            counted.update(new)
    if shared_tokens == "paths":
        return [TrainingResponse(*about, [path]) for path in paths]
    return [TrainingResponse(*about, paths)] if paths else []


def _path(
    trajectory: Trajectory,
    path: Sequence[int],
    counted: set[int],
    routes: Routes | None,
    reader: MediaReader | None,
) -> TrainingPath:
    nodes = [trajectory.nodes[index] for index in path]
    sizes = [len(node.tokens) for node in nodes]
    record_TN = np.stack(
        [
            np.concatenate([node.tokens for node in nodes]).astype(np.int32),
            np.concatenate([node.mask for node in nodes]).astype(np.int32),
            np.concatenate([node.logprobs for node in nodes]).astype(np.float32).view(np.int32),
            np.repeat(np.array([node.temperature for node in nodes], np.float32), sizes).view(np.int32),
        ],
        axis=1,
    )
    counted_T = (record_TN[:, 1] > 0) & np.repeat([index in counted for index in path], sizes)
    turn_T = np.repeat([node.turn for node in nodes], sizes)
    turns = []
    for turn in dict.fromkeys(turn_T[counted_T].tolist()):
        places = np.flatnonzero(counted_T & (turn_T == turn))
        turns.append((int(places[0]), int(places[-1])))
    media = path_media(trajectory, path, reader)
    if reader is not None:
        record_TN = np.concatenate([record_TN, _digests(media, len(record_TN))], axis=1)
    if routes is None:
        return TrainingPath(record_TN, counted_T, turns, path, media=media)
    unknown = [np.full((len(node.tokens), *routes), NO_EXPERTS, np.int16) for node in nodes]
    known = [none if node.experts is None else node.experts for node, none in zip(nodes, unknown, strict=True)]
    return TrainingPath(record_TN, counted_T, turns, path, np.concatenate(known), media)


def _digests(media: Sequence[PlacedChunk], length: int) -> np.ndarray:
    """Int32 ``[length, 2]``: the first bytes of the digest of the image that each token stands for, 0 for text."""
    digests = np.zeros((length, 2), np.int32)
    for placed in media:
        digests[placed.start : placed.stop] = np.frombuffer(placed.digest[:8], np.int32)
    return digests
