"""The device side of an engine: weights, cache, and the programs that run over them."""

from __future__ import annotations

from collections import abc
import functools
from typing import Any, NamedTuple

import jax
from jax import Array
from jax.sharding import Mesh
import numpy as np

from k2jax.client import MAX_TOP_LOGPROBS
from k2jax.config.schema import ModelConfig
from k2jax.inference import shapes
from k2jax.inference.batch import BatchRows
from k2jax.inference.forward import MediaRows, PromptScores, empty_cache, run_chunk
from k2jax.inference.mesh import ROWS, device_count, fetch, place
from k2jax.inference.sampler import sample
from k2jax.inference.scheduler import Sequence
from k2jax.inference.tower import FeatureStore
from k2jax.inference.weights import VISION, EngineWeights
from pallas_kernels.implementation import resolve

TOP_SIZES = [0, 1, MAX_TOP_LOGPROBS]
"""Numbers of alternatives that programs compute: a request gets the first of as many as suffice."""


class RowResult(NamedTuple):
    """What a program computed for one sequence.

    Attributes:
        sequence: the sequence.
        count: number of its ids that are in the cache now and were not before.
        scores: arrays ``[width, ...]`` of the tokens after these ids, or None.
        experts: int16 ``[count, expert layers, active experts]`` of these ids, or None.
        token: the id that was drawn after them, or None where ids of the sequence are still pending.
        logprob: of the token.
        top: the most likely ids ``[K]`` and their log-probabilities ``[K]``, as many as any sequence asks for.
    """

    sequence: Sequence
    count: int
    scores: PromptScores | None
    experts: np.ndarray | None
    token: int | None = None
    logprob: float = 0.0
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
        pages = sizes.pages + sizes.devices  # with a scratch page on every device
        self._empty_cache = functools.partial(empty_cache, model, pages, sizes.page_size, self.weights.dtype, mesh)
        self._cache = self._empty_cache()
        self._page_size = sizes.page_size
        self.row_sizes = shapes.growing_sizes(1, sizes.slots // sizes.devices)
        self.context_sizes = shapes.context_sizes(sizes.longest, reads_all=resolve(model.kernels) == "xla")

    def release(self) -> None:
        """Gives the memory of the weights and of the cache back, until the next update and the next run."""
        self.weights.release()
        self._cache = None

    def run(self, sequences: abc.Sequence[Sequence], width: int) -> list[RowResult]:
        """Computes the next ``width`` ids of each sequence, and draws a token where these were its last."""
        devices = device_count(self._mesh)
        rows = BatchRows.of(sequences, width, devices, lambda n: shapes.at_least(self.row_sizes, n))
        used = -(-rows.most_context() // self._page_size)
        # A prompt of one token is a step of decoding like later ones, and takes the same program.
        columns = shapes.at_least(self.context_sizes, max(used, 1) if width == 1 else used)
        chunk, targets = self._place(rows.chunk(width, columns, self._page_size))
        scored = width > 1 and rows.asks(lambda sampling: sampling.prompt_logprobs)
        routed = rows.asks(lambda sampling: sampling.return_experts)
        top = shapes.at_least(TOP_SIZES, rows.most_alternatives()) if scored else 0
        variant = {"config": self._model, "prompt_logprobs": scored, "return_experts": routed, "mesh": self._mesh}
        variant["prompt_top"] = min(top, self._model.vocab)
        if self._cache is None:
            self._cache = self._empty_cache()
        decoder = {group: part for group, part in self.weights.params.items() if group != VISION}
        output = run_chunk(decoder, self._cache, chunk, targets, self._media(rows, width), **variant)
        self._cache = output.cache
        drawn = self._sample(output.logits, rows) if any(rows.done()) else None
        return self._results(
            rows, fetch(output.scores) if scored else None, fetch(output.experts) if routed else None, drawn
        )

    def _media(self, rows: BatchRows, width: int) -> MediaRows | None:
        images = rows.images()
        if not images:
            return None
        return self._place(rows.media(width, self.features.features(self.weights.params[VISION], images)))

    def _results(
        self,
        rows: BatchRows,
        scores: PromptScores | None,
        experts: np.ndarray | None,
        drawn: tuple[np.ndarray, ...] | None,
    ) -> list[RowResult]:
        # One conversion to Python's numbers for a whole batch.
        tokens, chosen = (drawn[0].tolist(), drawn[1].tolist()) if drawn is not None else ((), ())
        results = []
        for sequence, row, count in rows.used:
            asked = sequence.request.sampling
            own = PromptScores(*(array[row] for array in scores)) if asked.prompt_logprobs and scores else None
            routes = experts[row, :count] if asked.return_experts else None
            token = (tokens[row], chosen[row], (drawn[2][row], drawn[3][row])) if count == sequence.pending else ()
            results.append(RowResult(sequence, count, own, routes, *token))
        return results

    def _sample(self, logits: Array, rows: BatchRows) -> tuple[np.ndarray, ...]:
        choice, drawn, truncated, top = rows.choice()
        return fetch(sample(logits, self._place(choice), drawn, truncated, min(top, self._model.vocab)))

    def _place(self, arrays: Any) -> Any:
        return jax.tree.map(lambda array: place(array, ROWS, self._mesh), arrays)
