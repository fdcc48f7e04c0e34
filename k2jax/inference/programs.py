"""The device side of an engine: weights, cache, and the programs that run over them."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator
import dataclasses
import functools
from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh, PartitionSpec
import numpy as np

from k2jax.client import MAX_BIASES, MAX_TOP_LOGPROBS
from k2jax.config.schema import ModelConfig
from k2jax.inference import shapes
from k2jax.inference.batch import BatchRows
from k2jax.inference.decode import decode
from k2jax.inference.executables import Executables, folder_of_programs
from k2jax.inference.forward import MediaRows, PromptScores, empty_cache, run_chunk
from k2jax.inference.mesh import ROWS, default_sharding, device_count, fetch, place
from k2jax.inference.sampler import Choice, Drawn, sample
from k2jax.inference.scheduler import Sequence
from k2jax.inference.tower import FeatureStore
from k2jax.inference.weights import VISION, EngineWeights
from pallas_kernels.implementation import resolve

TOP_SIZES = [0, 1, MAX_TOP_LOGPROBS]
"""Numbers of alternatives that programs compute: a request gets the first of as many as suffice."""


@dataclasses.dataclass(frozen=True)
class RowResult:
    """What a program computed for one sequence.

    Attributes:
        sequence: the sequence.
        count: number of its ids that are in the cache now and were not before.
        scores: arrays ``[width, ...]`` of the tokens after these ids, or None.
        experts: int16 ``[count, expert layers, active experts]`` of these ids, or None.
        token: the id that was drawn after them, or None where ids of the sequence are still pending.
        logprob: of the token.
        free_logprob: of the token without mask, penalties and biases; None where no row of the program has any.
        top: the most likely ids ``[K]`` and their log-probabilities ``[K]``; None where they are not asked for.
    """

    sequence: Sequence
    count: int
    scores: PromptScores | None
    experts: np.ndarray | None
    _: dataclasses.KW_ONLY
    token: int | None = None
    logprob: float = 0.0
    free_logprob: float | None = None
    top: tuple[np.ndarray, np.ndarray] | None = None


class Programs:
    """Runs an engine's programs, and holds what they run over.

    Args:
        model: the architecture.
        params: parameter tree.
        sizes: of the engine.
        mesh: of ``inference.mesh.make_engine_mesh``; None is the default device.
        donate: as in ``EngineWeights``.
        feature_bytes: most features of images that are kept.

    Attributes:
        weights: the engine's copy of the weights.
        features: of images and video; empty where the weights have no tower.
        before: called with the name and the host's inputs of a program before it, and what it needs, is issued.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Any,
        sizes: shapes.EngineSizes,
        mesh: Mesh | None,
        *,
        donate: bool,
        feature_bytes: int,
    ):
        self.features = FeatureStore(model, mesh, feature_bytes)
        self.weights = EngineWeights(params, model, mesh, donate=donate)
        self._model, self._mesh = model, mesh
        self.before: Callable[[str, Any], None] = lambda name, inputs: None
        # First of all: they are loaded while the weights are read.
        kept, device = folder_of_programs() if mesh is None else None, next(iter(default_sharding().device_set))
        self._executables = Executables(kept, (model, sizes, self.weights.dtype), device)
        pages = sizes.pages + sizes.devices  # with a scratch page on every device
        self._empty_cache = functools.partial(empty_cache, model, pages, sizes.page_size, self.weights.dtype, mesh)
        self._cache = self._empty_cache()
        self._page_size = sizes.page_size
        self.row_sizes = shapes.growing_sizes(1, sizes.slots // sizes.devices)
        most = min(model.vocab, sizes.max_length + MAX_BIASES)  # different tokens of a sequence, and biases
        self._adjusted_sizes = shapes.growing_sizes(min(64, most), most)
        self.context_sizes = shapes.context_sizes(sizes.longest, reads_all=resolve(model.kernels) == "xla")

    @property
    def kept(self) -> bool:
        """Whether former starts have kept programs that read prompts and that generate."""
        return self._executables.kept(run_chunk, decode, sample)

    def release(self, weights: bool = True) -> None:
        """Gives the memory of the cache back until the next run, and that of the weights until the next update."""
        if weights:
            self.weights.release()
        self._cache = None

    def run(self, sequences: abc.Sequence[Sequence], width: int) -> list[RowResult]:
        """Computes the next ``width`` ids of each sequence, and draws a token where these were its last."""
        rows = self._rows(sequences, width)
        columns = self._columns(sequence.computed for sequence in sequences)
        chunk, targets = rows.chunk(width, columns, self._page_size)
        choice, mask = (self._choice(rows), rows.mask(self._model.vocab)) if any(rows.done()) else (None, None)
        self.before(run_chunk.__name__, (chunk, targets, choice, mask, list(rows.images())))
        chunk, targets = self._place((chunk, targets))
        scored = width > 1 and rows.asks(lambda sampling: sampling.prompt_logprobs)
        routed = rows.asks(lambda sampling: sampling.return_experts)
        top = shapes.at_least(TOP_SIZES, rows.max_alternatives()) if scored else 0
        variant = {"config": self._model, "prompt_logprobs": scored, "return_experts": routed, "mesh": self._mesh}
        variant["prompt_top"] = min(top, self._model.vocab)
        held, inputs = (self._decoder, self._take_cache()), (chunk, targets, self._media(rows, width))
        short = rows.count * width <= shapes.PREFILL_WIDTHS[0]
        output = self._executables.run(run_chunk, held, inputs, short=short, **variant)
        self._cache = output.cache
        drawn = None
        if choice is not None:
            drawn = self._executables.run(sample, (), (output.logits, *self._place((choice, mask))))
        scores, experts = fetch(output.scores) if scored else None, fetch(output.experts) if routed else None
        return _results(rows, scores, experts, _fetch_drawn(drawn, rows))

    def decode(self, counts: abc.Mapping[Sequence, int]) -> Iterator[list[RowResult]]:
        """Generates as many tokens of each sequence as are wanted; the first ones of all sequences come first.

        Args:
            counts: at most ``decode.STEPS`` of each sequence, for which it has pages.
        """
        rows, steps = self._rows(list(counts), 1), max(counts.values())
        routed = rows.asks(lambda sampling: sampling.return_experts)
        columns = self._columns(sequence.computed + count for sequence, count in counts.items())
        inputs = rows.continuation(counts, columns), self._choice(rows), rows.mask(self._model.vocab)
        self.before(decode.__name__, (*inputs, steps))
        batch, choice, mask = self._place(inputs)
        limit = place(np.array(steps, np.int32), PartitionSpec(), self._mesh)
        variant = {"config": self._model, "return_experts": routed, "mesh": self._mesh}
        held = self._decoder, self._take_cache()
        output = self._executables.run(decode, held, (batch, choice, limit, mask), **variant)
        self._cache = output.cache
        drawn, experts = _fetch_drawn(output.drawn, rows), fetch(output.experts) if routed else None
        for step in range(steps):
            still = rows._replace(used=[used for used in rows.used if step < counts[used[0]]])
            routes = None if experts is None else experts[step][:, None]
            yield _results(still, None, routes, jax.tree.map(lambda array, step=step: array[step], drawn))

    def _rows(self, sequences: abc.Sequence[Sequence], width: int) -> BatchRows:
        return BatchRows.of(
            sequences, width, device_count(self._mesh), lambda needed: shapes.at_least(self.row_sizes, needed)
        )

    def _choice(self, rows: BatchRows) -> Choice:
        return rows.choice(self._model.vocab, self._adjusted_sizes)

    def _columns(self, lengths: abc.Iterable[int]) -> int:
        """The number of pages that a program knows of each sequence, for the longest part of one [tokens]."""
        return shapes.at_least(self.context_sizes, -(-max(lengths) // self._page_size))

    def _take_cache(self) -> Array:
        """The cache, which the program that it is given to overwrites."""
        cache, self._cache = self._cache, None
        return self._empty_cache() if cache is None else cache

    @property
    def _decoder(self) -> dict:
        return {group: part for group, part in self.weights.params.items() if group != VISION}

    def _media(self, rows: BatchRows, width: int) -> MediaRows | None:
        images = rows.images()
        if not images:
            return None
        return self._place(rows.media(width, self.features.features(self.weights.params[VISION], images)))

    def _place(self, arrays: Any) -> Any:
        return jax.tree.map(lambda array: place(array, ROWS, self._mesh), arrays)


def _fetch_drawn(drawn: Drawn | None, rows: BatchRows) -> Drawn | None:
    """NumPy arrays; of the alternatives only where any sequence asks for them."""
    if drawn is None or rows.asks(lambda sampling: sampling.top_logprobs > 0):
        return drawn and fetch(drawn)
    return fetch(drawn._replace(top_ids=None, top_logprobs=None))


def _results(
    rows: BatchRows, scores: PromptScores | None, experts: np.ndarray | None, drawn: Drawn | None
) -> list[RowResult]:
    # One conversion to Python's numbers for a whole batch.
    tokens, chosen = (drawn.tokens.tolist(), drawn.logprobs.tolist()) if drawn is not None else ((), ())
    free = None if drawn is None or drawn.free_logprobs is None else drawn.free_logprobs.tolist()
    results = []
    for sequence, row, count in rows.used:
        asked = sequence.request.sampling
        own = PromptScores(*(array[row] for array in scores)) if asked.prompt_logprobs and scores else None
        routes = experts[row, :count] if asked.return_experts else None
        result = RowResult(sequence, count, own, routes)
        if drawn is not None and count == sequence.pending:
            top = (drawn.top_ids[row], drawn.top_logprobs[row]) if asked.top_logprobs else None
            new = {"token": tokens[row], "logprob": chosen[row], "free_logprob": free and free[row], "top": top}
            result = dataclasses.replace(result, **new)
        results.append(result)
    return results
