"""Which tokens an update leaves out, written into the trajectories that it trains on.

A token outside the trust region has no gradient of its ratio, and one outside IcePop's band no policy gradient. The
page of trajectories shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.batch import PackedBatch, TokenScores
from k2jax.config.schema import Config, PolicyLossConfig
from k2jax.losses.icepop import IcePop
from k2jax.losses.registry import make_policy_term
from k2jax.losses.rows import Rows
from k2jax.rl.groups import PromptGroup
from k2jax.rl.methods.base import Method, Methods, Parts
from k2jax.rl.packing.rows import PackedRows, PathPlace
from k2jax.rl.sampler import Sampler
from k2jax.train.run import Run
from k2jax.trajectory import Trajectory
from k2jax.trajectory.annotations import TrainingMarks, set_training


@dataclasses.dataclass
class _Found:
    """What is left out of one trajectory: values by node and place, and by turn."""

    trajectory: Trajectory
    advantage: float
    clipped: dict[int, dict[int, float]] = dataclasses.field(default_factory=dict)
    zeroed: dict[int, dict[int, float]] = dataclasses.field(default_factory=dict)
    turns: dict[int, float] = dataclasses.field(default_factory=dict)


class _Units(NamedTuple):
    """Of a row: ratios, and where they are clipped, of units; and whether IcePop keeps each token. None has no such."""

    ratio_U: Any
    clipped_U: Any
    kept_S: Any


class LossMasks(Method):
    """Finds what the policy loss leaves out of rows, and stores the trajectories of an iteration with it.

    Args:
        loss: settings of the policy loss.
        score: a forward pass with the weights as they are: log-probabilities ``[rows, S]`` of rows ``[S]``.
    """

    def __init__(self, loss: PolicyLossConfig, score: Callable[[Sequence[PackedBatch]], np.ndarray]):
        self._loss, self._score = make_policy_term(loss), score
        self._by_sign = loss.name == "ppo"
        self._icepop = IcePop(loss.icepop.low, loss.icepop.high) if loss.icepop.on else None
        self._clipping = jax.jit(self._of_row)
        self._updates: Mapping[int, PackedRows] = {}
        self._sampler: Sampler | None = None

    @staticmethod
    def used(config: Config) -> bool:
        """Whether ``rl.record_masks`` is set."""
        return config.rl.record_masks

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> LossMasks:
        """See ``Method``."""
        return cls(parts.config.rl.loss, parts.score)

    def begin(self, run: Run, sampler: Sampler) -> None:
        """Stores trajectories with ``sampler``."""
        self._sampler = sampler

    def prepare(self, step: int, updates: Mapping[int, PackedRows]) -> Mapping[int, PackedRows]:
        """Notes where responses lie in rows."""
        self._updates = updates
        return updates

    def before_update(self, step: int, number: int, rows: list[PackedBatch]) -> list[PackedBatch]:
        """Marks what is left out of the rows."""
        self.mark(number, self._updates[number], rows)
        return rows

    def record(self, step: int, groups: Sequence[PromptGroup]) -> Mapping[str, float]:
        """Stores the groups again: what training left out is known only now."""
        self._sampler.store(step, groups)
        return {}

    def mark(self, update: int, packed: PackedRows, rows: Sequence[PackedBatch]) -> None:
        """Writes what an update is about to leave out into the metadata of its trajectories.

        Args:
            update: number of the update in its iteration.
            packed: what was packed.
            rows: its rows ``[S]`` with the targets that are trained on.
        """
        found: dict[int, _Found] = {}
        scores, texts = self._score(rows), [row.replace(media=None, patches=None) for row in rows]
        units = [jax.device_get(self._clipping(scores[number], text)) for number, text in enumerate(texts)]
        for place in packed.places:
            trajectory = place.response.trajectory
            of_trajectory = found.setdefault(id(trajectory), _Found(trajectory, place.response.advantage))
            self._collect(of_trajectory, place, rows[place.row], units[place.row])
        for each in found.values():
            set_training(each.trajectory, TrainingMarks(update, each.advantage, each.clipped, each.zeroed, each.turns))

    def _of_row(self, logprob_S: jax.Array, row: PackedBatch) -> _Units:
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row)
        scores, rows = TokenScores(logprob_S[None]), Rows(batch.exit, jnp.arange(len(logprob_S)))
        ratio, clipped = self._loss.clipping(scores, batch.targets, rows)
        kept = None if self._icepop is None else self._icepop.kept(batch.targets)
        return jax.tree.map(lambda leaf: leaf[0], _Units(ratio, clipped, kept))

    def _collect(self, found: _Found, place: PathPlace, row: PackedBatch, units: _Units) -> None:
        """Adds what is left out of one path, whose counted tokens and turns are looked up in its row."""
        nodes, path = found.trajectory.nodes, place.path
        sizes = [len(nodes[index].tokens) for index in path.nodes]
        node_T, place_T = np.repeat(path.nodes, sizes), np.concatenate([np.arange(size) for size in sizes])
        counted = np.flatnonzero(path.counted_T)
        index = place.index_T[counted]
        if units.kept_S is not None:
            out = ~units.kept_S[index]
            k = np.exp(row.targets.old_logprob[index[out]] - row.targets.behavior_logprob[index[out]])
            _add(found.zeroed, node_T[counted[out]], place_T[counted[out]], k)
        if units.clipped_U is None:
            return
        if self._loss.level == "token":
            out = units.clipped_U[index]
            if self._by_sign:  # of the advantages of the responses that share a token, one alone may be clipped
                out &= (units.ratio_U[index] > 1) == (place.response.advantage > 0)
            _add(found.clipped, node_T[counted[out]], place_T[counted[out]], units.ratio_U[index[out]])
            return
        for turn, (first, _) in enumerate(path.turns, place.first_turn):
            entry = turn if self._loss.level == "turn" else row.targets.turn_response[turn]
            if units.clipped_U[entry]:
                found.turns[nodes[node_T[first]].turn] = float(units.ratio_U[entry])


def _add(marks: dict[int, dict[int, float]], nodes: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    for node, place, value in zip(nodes.tolist(), places.tolist(), values.tolist(), strict=True):
        marks.setdefault(node, {})[place] = value
