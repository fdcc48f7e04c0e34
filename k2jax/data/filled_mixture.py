"""The mixture of a run: shares and limits of its sources, and the text that fills its rows with images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import TYPE_CHECKING

import numpy as np

from k2jax.config.schema import SourceConfig
from k2jax.data.filling import FilledRows, RowsPart, divided, filled_rows, piece_tokens
from k2jax.data.packing import RowSource
from k2jax.data.vision_share import VisionShare
from k2jax.mixture_plan import MixturePlan, Weighting

if TYPE_CHECKING:
    from k2jax.data.conversation_rows import ConversationRows
    from k2jax.data.images.image_rows import VisualRows

    SplitRows = RowSource | ConversationRows | VisualRows  # by the source's kind


class FilledMixture:
    """What is drawn from every source.

    Rows with images are filled where all other sources are texts whose documents may be cut. Rows of conversations are
    never cut, and fill none.

    Attributes:
        rows: of every source, those that are drawn as rows: of a text the part that fills no others.
        weighting: of the sources in the order of their names.
        limits: most rows of each; None is no limit.
        filled: rows with images, by source, where text fills them.
    """

    def __init__(
        self,
        rows: Mapping[str, SplitRows],
        sources: Mapping[str, SourceConfig],
        share: VisionShare | None,
        *,
        batch_size: int,
        steps: int,
        seed: int,
    ):
        """Divides the sources; arguments as of ``DataLoader``."""
        self._names, self._sources, self.rows = sorted(sources), sources, dict(rows)
        weights = [sources[name].weight for name in self._names]
        means = [rows[name].tokens / len(rows[name]) for name in self._names]
        free = {name: rows[name].free for name in self._names if hasattr(rows[name], "free")}
        texts = [name for name in self._names if name not in free]
        if not texts or not all(isinstance(rows[name], RowSource) for name in texts):
            free = {}
        taken = [_tokens_taken(free[name], rows[name].length) if name in free else 0.0 for name in self._names]
        self.weighting: Weighting | Sequence[float] = weights
        starts, filled = (0,), [1.0]
        if share:
            self.weighting = share.weighting(
                self._names, weights, means, batch_size=batch_size, steps=steps, free=taken
            )
            starts, filled = self.weighting.starts, share.filled(self._names, weights, means, taken)
        self.filled: dict[str, FilledRows] = {}
        self.limits = self._limits()
        if any(taken):
            sizes = {name: w * mean for name, w, mean in zip(self._names, weights, means, strict=True) if name in texts}
            shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
            phases = list(zip(starts, filled, strict=True))
            parts, draws = self._divide(shares, free, taken, phases, batch_size * steps)
            self.filled = filled_rows(
                {name: rows[name] for name in free},
                parts,
                shares,
                phases=draws,
                max_epochs={name: sources[name].max_epochs for name in texts},
                seed=seed,
            )
            self.limits = self._limits()

    def _divide(
        self,
        shares: Mapping[str, float],
        free: Sequence[str],
        taken: Sequence[float],
        phases: Sequence[tuple[int, float]],
        total: int,
    ) -> tuple[dict[str, dict[str, RowsPart]], dict[str, list[tuple[int, float]]]]:
        """Divides each text as it is used over a run of ``total`` rows, so that all its parts are passed equally often.

        Returns:
            Of every text its part for each source with images, and of those the phases by their draws.
        """
        plan = MixturePlan(self.weighting, self.limits)
        ends = [min(row, total, len(plan)) for row in (*(start for start, _ in phases), total)]
        drawn = np.array([plan.drawn(end) for end in ends])
        pieces = (np.diff(drawn, axis=0) * [[part] for _, part in phases]).sum(0) * taken  # tokens, by source
        at = {name: number for number, name in enumerate(self._names)}
        parts: dict[str, dict[str, RowsPart]] = {}
        for name, share in shares.items():
            source = self.rows[name]
            needed = [pieces[at[visual]] * share / (source.length - 1) for visual in free]
            self.rows[name], *others = divided(source, [int(drawn[-1, at[name]]), *needed])
            parts[name] = dict(zip(free, others, strict=True))
        filled = [part for _, part in phases]
        draws = {name: list(zip(drawn[:-1, at[name]].tolist(), filled, strict=True)) for name in free}
        return parts, draws

    def _limits(self) -> list[int | None]:
        return [_limit(self._sources[name].max_epochs, len(self.rows[name])) for name in self._names]


def _tokens_taken(free: np.ndarray, length: int) -> float:
    """Mean tokens of the pieces that fill rows with so many free tokens: some cross from one row into another."""
    targets = piece_tokens(free)
    return float(np.where(targets > 0, targets + 1 + targets / (length - 1), 0).mean())


def _limit(max_epochs: float, rows: int) -> int | None:
    return max(1, math.floor(max_epochs * rows)) if max_epochs else None
