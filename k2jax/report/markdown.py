"""``report.md``: a one-page summary of a run, which omits what is unknown."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

from k2jax.files.atomic import write_atomic
from k2jax.report.metrics import read_metrics
from k2jax.report.plots import FOLDER as PLOTS
from k2jax.report.samples import Sample, read_samples
from k2jax.report.summary import RunSummary, complete
from k2jax.report.table import duration, fenced, markdown_table, percent, quantity, significant

FILE = "report.md"
GAP = 0.05  # of the validation loss above the training loss, below which nothing is said of it [nats per token]
CAPTIONS = {
    "accuracy": "Reward in training, and accuracy on held-out tasks",
    "responses": "Responses: their length, the share that was cut, entropy, and the rate of generation",
    "drift": "How far trainer and engine, and the new and the old policy, are apart",
    "verdicts": "Verdicts of the judge",
    "loss": "Loss and held-out bits per byte",
    "max_logit": "Largest attention logits",
    "expert_load": "Load of the experts",
    "learning_rate": "Learning rate and gradient norm",
    "throughput": "Throughput",
}


def write_report(workdir: Path | str, summary: RunSummary) -> Path:
    """Writes ``report.md`` from the summary and the workdir's metrics, samples and plots.

    Fields of the summary that are None are computed from ``metrics.jsonl`` if possible (see RunSummary). The report
    links only existing plots, so draw them first.

    Returns:
        The path of the report.
    """
    workdir = Path(workdir)
    summary = complete(summary, read_metrics(workdir, most_lists=1))
    sections = [
        f"# {summary.title}\n",
        _headline(summary),
        _section("Result", _result(summary)),
        _section("Held-out tasks", _shares(summary)),
        _section("Run", _run(summary)),
        _section("Training", _training(summary)),
        _section("Phases", markdown_table(summary.phases[0], summary.phases[1:]) if summary.phases else ""),
        _section("Changes", _changes(summary)),
        _section(_optimizer(summary), _muonclip(summary)),
        _section("Expert balance", _balance(summary)),
        _section("Data", _data(summary)),
        _section("Plots", _plots(workdir, summary)),
        _section("Samples", _samples(workdir)),
        _section("Continue", _continue(summary)),
    ]
    return write_atomic(workdir / FILE, "\n".join(section for section in sections if section))


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _format_known(value: Any, form: Callable[[Any], str]) -> str | None:
    return None if value is None else form(value)


def _facts(rows: list[tuple[str, str | None]]) -> str:
    return "".join(f"- {name}: {value}\n" for name, value in rows if value is not None)


def _headline(s: RunSummary) -> str:
    """One sentence: steps, quality and duration."""
    parts = []
    if s.step is not None:
        parts.append(f"{_steps(s)} {_noun(s)}")
    greedy = [(first, last) for name, first, last in s.held_out_shares if name == "greedy"]
    if greedy:
        first, last = (share.partition(" ")[0] for share in greedy[0])
        parts.append(f"**{last} of held-out tasks right**, {first} at the beginning")
    if s.val_bits_per_byte is not None:
        share = s.val_bits_per_byte / s.baselines.unigram_entropy if s.baselines.unigram_entropy else None
        comparison = "" if share is None else f", {percent(share)} of the unigram byte entropy"
        parts.append(f"**{s.val_bits_per_byte:.3f} bits per byte** on held-out text{comparison}")
    elif s.val_loss is not None:
        parts.append(f"**validation loss {s.val_loss:.3f}**")
    if s.seconds is not None:
        parts.append(duration(s.seconds))
    status = f"{s.status[:1].upper()}{s.status[1:]}: " if s.status and parts else s.status or ""
    text = status + "; ".join(parts)
    return f"{text}.\n" if text else ""


def _noun(s: RunSummary) -> str:
    return "iterations" if s.stage == "rl" else "steps"


def _steps(s: RunSummary) -> str:
    return f"{s.step:,}" + (f" of {s.total_steps:,}" if s.total_steps else "")


def _result(s: RunSummary) -> str:
    bits = [] if s.val_bits_per_byte is None else [("this model", s.val_bits_per_byte)]
    rows = [*bits, *s.baselines.items()]
    if not rows:
        facts = [("held-out loss", _format_known(s.val_loss, "{:.4f} nats per token".format)), ("held out", s.held_out)]
        return _facts(facts) if s.val_loss is not None else ""
    entropy = s.baselines.unigram_entropy
    if entropy:
        table = markdown_table(
            ("held-out text", "bits per byte", "of unigram entropy"),
            [(name, f"{value:.3f}", percent(value / entropy)) for name, value in rows],
        )
    else:
        table = markdown_table(("held-out text", "bits per byte"), [(name, f"{value:.3f}") for name, value in rows])
    return table + (f"\nHeld-out text: {s.held_out}.\n" if s.held_out else "")


def _shares(s: RunSummary) -> str:
    if not s.held_out_shares:
        return ""
    return markdown_table(("share", "first", "last"), s.held_out_shares) + (f"\n{s.held_out}\n" if s.held_out else "")


def _run(s: RunSummary) -> str:
    parameters = None
    if s.parameters_total is not None:
        active = "" if s.parameters_active is None else f", {quantity(s.parameters_active)} active per token"
        parameters = f"{quantity(s.parameters_total)} in all{active}"
    versions = ", ".join(f"{name} {version}" for name, version in s.versions.items()) or None
    facts = _facts([("stage", s.stage), ("parameters", parameters), ("device", s.device), ("versions", versions)])
    config = markdown_table(("key", "value"), [(f"`{k}`", f"`{v}`") for k, v in s.config.items()]) if s.config else ""
    return "\n".join(part for part in (facts, config) if part)


def _training(s: RunSummary) -> str:
    return _facts(
        [
            (_noun(s), None if s.step is None else _steps(s)),
            ("tokens", _format_known(s.tokens, quantity)),
            ("time", _format_known(s.seconds, duration)),
            ("throughput", _format_known(s.tokens_per_second, lambda rate: f"{significant(rate)} tokens/s (median)")),
            ("model FLOPs utilisation", _format_known(s.mfu, lambda mfu: f"{percent(mfu)} {_of_peak(s)}(median)")),
            ("peak memory", _format_known(s.memory_gb, lambda size: f"{significant(size)} GB")),
            *(_rewards(s) if s.stage == "rl" else _losses(s)),
        ]
    )


def _rewards(s: RunSummary) -> list[tuple[str, str | None]]:
    """Rewards in training; the value of a policy's objective says nothing of its quality."""
    return [
        ("mean reward, first iterations", _format_known(s.reward_first, "{:.3f}".format)),
        ("mean reward, last iterations", _format_known(s.reward_last, "{:.3f}".format)),
    ]


def _losses(s: RunSummary) -> list[tuple[str, str | None]]:
    return [
        ("training loss, last step", _format_known(s.loss, "{:.3f} nats per token".format)),
        (
            f"training loss, mean of the last {s.mean_loss_records} records",
            _format_known(s.mean_loss, "{:.3f} nats per token".format),
        ),
        ("validation loss", _format_known(s.val_loss, _validation_loss(s))),
        ("best checkpoint", _format_known(s.best_step, "step {:,}, which `init_from` calls `WORKDIR/best`".format)),
        ("loss spikes", _format_known(s.spikes, "{:,}".format)),
    ]


def _of_peak(s: RunSummary) -> str:
    if s.peak_flops is None:
        return ""
    source = "measured with a float32 matrix product" if s.peak_is_measured else "by the data sheet"
    return f"of {significant(s.peak_flops / 1e12)} TFLOP/s, {source} "


def _validation_loss(s: RunSummary) -> Callable[[float], str]:
    """The loss and, where it is above the training loss without a second pass over any text, what that means."""

    def form(loss: float) -> str:
        text = f"{loss:.3f} nats per token"
        once = s.sources and all(source.epochs is not None and source.epochs <= 1 for source in s.sources)
        if s.mean_loss is None or not once or loss - s.mean_loss < GAP:
            return text
        return (
            f"{text}, {loss - s.mean_loss:.2f} above the training loss. No text was seen twice, so nothing is "
            "memorised: the held-out text differs from the training text"
        )

    return form


def _changes(s: RunSummary) -> str:
    """What was changed between two starts of the run."""
    rows = [(step, f"`{key}`", f"`{before}`", f"`{now}`") for step, key, before, now in s.changes]
    return markdown_table(("up to step", "key", "before", "after"), rows) if rows else ""


def _optimizer(s: RunSummary) -> str:
    """The title of the section on attention logits, which QK-Clip bounds, and Muon's cost."""
    if s.newton_schulz_share is None:
        return "Attention"
    return "Muon" if s.qk_clip_tau is None else "MuonClip"


def _muonclip(s: RunSummary) -> str:
    logit = clipped = None
    if s.max_logit is not None:
        logit = significant(s.max_logit, 4) + (f" at step {s.max_logit_step:,}" if s.max_logit_step is not None else "")
    if s.clipped_heads is not None:
        steps = f" in {s.clipped_steps:,} of the logged steps" if s.clipped_heads and s.clipped_steps else ""
        clipped = f"{s.clipped_heads:,}{steps}"
    return _facts(
        [
            ("highest attention logit", logit),
            ("QK-Clip threshold", _format_known(s.qk_clip_tau, "{:g}".format)),
            ("heads clipped", clipped),
            (
                "Newton-Schulz, of the training FLOPs of its matrices",
                _format_known(s.newton_schulz_share, percent),
            ),
        ]
    )


def _balance(s: RunSummary) -> str:
    if s.max_violation_first is None or s.max_violation_last is None:
        return ""
    return (
        f"Max violation of the worst layer (load of the busiest expert / mean load - 1): "
        f"{significant(s.max_violation_first)} in the first steps, {significant(s.max_violation_last)} in the last.\n"
    )


def _data(s: RunSummary) -> str:
    if not s.sources:
        return ""
    rows = []
    for source in s.sources:
        tokens, epochs = _format_known(source.tokens, quantity), _format_known(source.epochs, "{:.2f}".format)
        rows.append((source.name, tokens, epochs, _format_known(source.tokens_seen, quantity), source.skipped))
    return markdown_table(("source", "tokens", "epochs used", "tokens seen", "records skipped"), rows)


def _plots(workdir: Path, s: RunSummary) -> str:
    captions = CAPTIONS if s.val_bits_per_byte is not None else CAPTIONS | {"loss": "Loss"}
    if s.stage == "rl":
        captions = captions | {"loss": "Objective"}
    names = [name for name in captions if (workdir / PLOTS / f"{name}.png").exists()]
    return "\n".join(f"![{captions[name]}]({PLOTS}/{name}.png)\n" for name in names)


def _samples(workdir: Path) -> str:
    by_step = {step: samples for step, samples in read_samples(workdir).items() if samples}
    steps = sorted({min(by_step), max(by_step)}) if by_step else []
    return "\n".join(f"### Step {step:,}\n\n" + "\n".join(map(_sample, by_step[step])) for step in steps)


def _sample(sample: Sample) -> str:
    # The prompt is a quoted string: line breaks are visible, and backticks cannot close the code span.
    prompt = json.dumps(sample.prompt, ensure_ascii=False).replace("`", "\\u0060")
    return f"After `{prompt}`:\n\n{fenced(sample.prompt + sample.text)}"


def _continue(s: RunSummary) -> str:
    if not s.command:
        return ""
    return f"The run resumes from its last checkpoint by itself:\n\n{fenced(s.command, 'sh')}"
