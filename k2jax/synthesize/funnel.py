"""The funnel of a run: of every stage what came in, what went on, and why the rest did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
from pathlib import Path
from typing import Any

from k2jax.report.style import PALETTE, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.settings import AskedModelConfig

_MILLION = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageCounts:
    """What became of the records of a stage.

    Attributes:
        stage: its name.
        records: that came in.
        kept: that went on.
        dropped: by reason.
        questions: to models, by role.
        prompt_tokens: of the questions, by role.
        tokens: of the answers, by role.
    """

    stage: str
    records: int
    kept: int
    dropped: Mapping[str, int]
    questions: Mapping[str, int]
    prompt_tokens: Mapping[str, int]
    tokens: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """The JSON value."""
        return dataclasses.asdict(self)

    def line(self) -> str:
        """A line for people."""
        why = "".join(f" · {count:,} {reason}" for reason, count in self.dropped.items())
        return f"{self.stage}: {self.records:,} in · {self.kept:,} kept{why} · {sum(self.tokens.values()):,} tokens"

    def cost(self, models: Mapping[str, AskedModelConfig]) -> float:
        """What the answers cost at the prices of a config."""
        return sum(
            (self.prompt_tokens[role] * models[role].price_read + self.tokens[role] * models[role].price_written)
            / _MILLION
            for role in self.tokens
            if role in models
        )


def counts_of(stage: str, records: int, results: Sequence[StageResult]) -> StageCounts:
    """The counts of a stage's results."""
    dropped = Counter(reason for result in results for reason, _ in result.made.dropped)
    questions: Counter[str] = Counter()
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for result in results:
        for call in result.calls:
            questions[call.role] += 1
            read[call.role] += call.reply.prompt_tokens
            written[call.role] += call.reply.tokens
    return StageCounts(
        stage=stage,
        records=records,
        kept=sum(len(result.made.kept) for result in results),
        dropped=dict(sorted(dropped.items())),
        questions=dict(sorted(questions.items())),
        prompt_tokens=dict(sorted(read.items())),
        tokens=dict(sorted(written.items())),
    )


def funnel_table(counts: Sequence[StageCounts]) -> str:
    """The funnel in Markdown."""
    rows = [
        (
            one.stage,
            f"{one.records:,}",
            f"{one.kept:,}",
            ", ".join(f"{count:,} {reason}" for reason, count in one.dropped.items()),
            f"{sum(one.questions.values()):,}",
            f"{sum(one.tokens.values()):,}",
        )
        for one in counts
    ]
    return markdown_table(("stage", "in", "kept", "dropped", "questions", "tokens"), rows) + "\n"


def funnel_picture(counts: Sequence[StageCounts], path: Path) -> None:
    """Draws what was kept and dropped at every stage."""
    figure, axes = new_figure(1, 1, height=0.5 + 0.45 * len(counts))
    axis = axes[0, 0]
    places = range(len(counts))
    axis.barh(places, [one.kept for one in counts], color=PALETTE[0], label="kept")
    dropped = [sum(one.dropped.values()) for one in counts]
    axis.barh(places, dropped, left=[one.kept for one in counts], color=PALETTE[1], label="dropped")
    axis.set_yticks(places, [one.stage.replace("_", " ") for one in counts])
    axis.invert_yaxis()
    style_axes(axis, title="Records of each stage", x="records", y="")
    axis.legend(frameon=False, fontsize=9, loc="upper right")
    figure.savefig(path, dpi=120)
