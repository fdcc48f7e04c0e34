"""More experts at the same activated parameters: does loss fall with sparsity at nano size?

Reproduces: the sparsity scaling law of Kimi K2, section 2.3 (figure 5), in miniature: 8, 16, 32 and 64 experts of
which 4 are active, two token budgets, three seeds. The report fits compute-optimal models. Here the active size is
fixed and the budgets are tiny, so either sign of the effect is possible, and the table states the measured one.

    python -m k2jax.reproduce sparsity --workdir=runs/sparsity
"""

import numpy as np

from k2jax.config import defaults
from k2jax.report.style import PALETTE, new_figure, style_axes
from k2jax.report.table import markdown_table, quantity
from k2jax.reproduce import RunResult, Study, Summary, final, spread

EXPERTS = (8, 16, 32, 64)
STEPS = (40, 120)
SEEDS = (0, 1, 2)


def get_config():
    """A narrow nano."""
    config = defaults("pretrain", model="nano")
    config.model.d_model = 128
    config.model.layers = 3
    config.model.dense_ffn = 512
    config.model.moe.expert_ffn = 64
    config.data.sequence_length = 256
    config.train.batch_size = 8
    config.optimizer.learning_rate = 8e-3
    config.optimizer.schedule.warmup_steps = 20
    config.router.bias_rate = 5e-3
    config.eval.every = 40
    config.eval.sample_tokens = 0
    config.eval.final_rows = 128
    config.checkpoint.every = 120
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    return config


def runs():
    """All numbers of experts, budgets and seeds; each budget is a separate run with its own learning-rate decay."""
    return {
        f"experts{experts}_steps{steps}_seed{seed}": {
            "model.moe.experts": experts,
            "train.steps": steps,
            "train.seed": seed,
        }
        for steps in STEPS
        for experts in EXPERTS
        for seed in SEEDS
    }


def summarize(results: dict[str, RunResult]) -> Summary:
    """Tabulates mean and range over seeds for each number of experts and token budget."""
    from k2jax.model import active_parameters, total_parameters  # It imports jax, which a config file must not do.

    losses: dict[int, dict[int, list[float]]] = {}
    configs = {}
    for result in results.values():
        config = result.config
        by_experts = losses.setdefault(config.train.steps, {})
        by_experts.setdefault(config.model.moe.experts, []).append(final(result, "val_loss"))
        configs[config.model.moe.experts] = config
    budgets = sorted(losses)
    rows = [
        (
            experts,
            f"{experts // config.model.moe.active_experts}",
            quantity(total_parameters(config.model)),
            quantity(active_parameters(config.model)),
            *(spread(losses[steps][experts]) for steps in budgets),
        )
        for experts, config in sorted(configs.items())
    ]
    per_step = {c.train.batch_size * c.data.sequence_length for c in configs.values()}.pop()
    names = [f"{quantity(steps * per_step)} tokens" for steps in budgets]
    header = ("experts", "sparsity", "parameters", "active", *(f"held-out loss, {name}" for name in names))
    verdicts = [_verdict(name, losses[steps]) for name, steps in zip(names, budgets, strict=True)]
    text = (
        "Four active experts, everything else equal; mean (lowest to highest) over seeds [nats per token].\n\n"
        f"{markdown_table(header, rows)}\n" + " ".join(verdicts) + "\n"
    )
    return Summary(text, _figure(losses, names))


def _verdict(name: str, by_experts: dict[int, list[float]]) -> str:
    """One sentence on the difference between the most and the fewest experts, compared with the range over seeds."""
    lowest, highest = min(by_experts), max(by_experts)
    change = float(np.mean(by_experts[highest]) - np.mean(by_experts[lowest]))
    noise = max(max(values) - min(values) for values in by_experts.values())
    direction = "lower" if change < 0 else "higher"
    comparison = "more" if abs(change) > noise else "not more"
    return (
        f"At {name}, {highest} experts end {abs(change):.3f} {direction} than {lowest}, {comparison} than the widest "
        f"range over seeds ({noise:.3f})."
    )


def _figure(losses: dict[int, dict[int, list[float]]], names: list[str]):
    """A panel for each budget: between budgets losses differ far more than between numbers of experts."""
    figure, axes = new_figure(1, len(losses), height=3.8)
    for (_, by_experts), name, panel in zip(sorted(losses.items()), names, axes[0], strict=True):
        experts = sorted(by_experts)
        means = [float(np.mean(by_experts[count])) for count in experts]
        lowest, highest = ([side(by_experts[count]) for count in experts] for side in (min, max))
        ranges = [np.subtract(means, lowest), np.subtract(highest, means)]
        panel.errorbar(experts, means, yerr=ranges, marker="o", capsize=4, color=PALETTE[0])
        panel.set_xscale("log", base=2)
        style_axes(panel, title=name, x="experts, 4 of them active", y="held-out loss [nats per token]")
        panel.set_xticks(experts, [str(count) for count in experts])
        panel.minorticks_off()
    return figure


STUDY = Study(get_config, runs, summarize)
