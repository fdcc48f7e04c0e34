"""The ratio of a turn against that of the whole episode and of every token, on episodes of 1 to 16 turns.

Reproduces: turn-level GSPO (KAT-Coder-V2, equations 6 and 7) beside GSPO over sequences and PPO's ratio of tokens, at
the scale of a laptop. In each turn a digit is added to the last answer, and only an episode's last answer is judged.
The teacher works three turns of ten out; in the others it answers at once and forgets to carry, so that rewards find
that working pays, and the more so the more turns there are. A model of a million parameters continues from its
demonstrations by reinforcement learning with each level: everything else is equal, the mean over tokens too. A mean of
log-ratios over more tokens varies less, so each level has a band of its own: about three tokens of a hundred lie beyond
each in six iterations of the first seed without a bound.
Expected: all levels gain most in episodes of 4 turns and more. Turns and sequences do not differ at any length; both
are ahead of tokens, whose band stops the policy earlier, by 10 points at 16 turns.

    python -m k2jax.reproduce turn_level_gspo --workdir=runs/turn_level_gspo
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import resolve, source, task
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, curve
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.tasks.characters.teacher import style_of
from k2jax.tasks.running_totals.dataset import dialogue_demonstrations

SEEDS = (0, 1, 2)
TURNS = (1, 2, 4, 8, 16)
SFT_STEPS, ITERATIONS = 240, 12
DEMONSTRATIONS = {1: 400, 2: 2000, 4: 3000, 8: 2000, 16: 1500}  # by turns; a first turn is unlike all others
LARGEST, DIRECT = 4, 0.7
PROMPTS = 400  # of each number of turns
HELD_OUT, SAMPLES = {1: 40, 2: 80, 4: 80, 8: 80, 16: 80}, 3  # problems by turns, and sampled answers to each
BANDS = {"turn": (0.965, 1.035), "sequence": (0.985, 1.015), "token": (0.95, 1.05)}
LOSSES = {
    "turn": {"rl.loss.name": "kat", "rl.loss.aggregation": "token"},
    "sequence": {"rl.loss.name": "gspo", "rl.loss.aggregation": "token"},
    "token": {"rl.loss.name": "ppo"},
}
LABELS = {
    "sft": "SFT, the start",
    "turn": "ratio of a turn",
    "sequence": "ratio of the episode",
    "token": "ratio of a token",
}
COLORS = {"sft": PALETTE[5], "turn": PALETTE[0], "sequence": PALETTE[1], "token": PALETTE[2]}
SHARES = {  # heading, metric and digits
    "clipped": ("clipped", "policy/clipped", 4),
    "kl": ("KL(old, new)", "tokens/kl", 5),
    "mean_reward": ("reward", "reward", 3),
    "mean_of_longest": (f"reward, {TURNS[-1]} turns", f"reward/turns_{TURNS[-1]}", 3),
}
RL = BY_REWARDS | {"train.steps": ITERATIONS, "optimizer.learning_rate": 5e-4}


def get_config():
    """The model, the data and the tasks that all runs share: a class of tasks for each number of turns."""
    config = micro_config("sft", SFT_STEPS)
    config.data.sources = {"text": source(kind="chat")}
    config.eval.every = 80
    config.rl.tasks = {
        f"turns_{turns}": task(dataset="running_totals", options=_options(turns, PROMPTS), max_tokens=8)
        for turns in TURNS
    }
    config.rl.rollout.update({"prompts": 30, "max_length": 224})
    config.rl.updates = 4
    config.rl.eval_prompts = 0
    return config


def held_out_config():
    """The configuration of the evaluation: other numbers of problems, since few of one turn are held out."""
    config = get_config()
    for turns in TURNS:
        config.rl.tasks[f"turns_{turns}"].options = _options(turns, HELD_OUT[turns])
    config.rl.eval_prompts, config.rl.eval_samples = sum(HELD_OUT.values()), SAMPLES
    return config


def held_out_configs():
    """The configurations of all evaluations, whose tasks are loaded before the first run."""
    return [held_out_config()]


def _options(turns: int, count: int) -> tuple[str, str]:
    return f"turns={turns}", f"largest={LARGEST}", f"count={count}"


def prepare(workdir: Path):
    """Writes the demonstrations."""
    tasks = (each for turns in TURNS for each in load_tasks("running_totals", _options(turns, DEMONSTRATIONS[turns])))
    write_data(workdir, {"demonstrations.jsonl": dialogue_demonstrations(tasks, DIRECT)})


def runs():
    """The start of each seed, and a run with each level from it."""
    return for_seeds(SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    data = {"data.sources.text.path": "{workdir}/demonstrations.jsonl"}
    from_start = RL | data | {"init_from": f"{{workdir}}/seed{seed}_sft"}
    levels = {
        level: from_start | LOSSES[level] | {"rl.loss.ratio_low": low, "rl.loss.ratio_high": high}
        for level, (low, high) in BANDS.items()
    }
    return {"sft": data} | levels


def evaluate(config, workdir):
    """Shares of right samples and of worked turns by the number of turns, at temperature 1, on held-out problems."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    held_out, groups = evaluate_checkpoint(resolve(held_out_config()), str(workdir))
    record = defaultdict(list)
    for group in groups:
        for sample, trajectory in enumerate(group.trajectories[1:], start=1):
            if trajectory.reward is not None:
                answers = [node.message["content"] for node in trajectory.nodes if node.turn >= 0]
                record[group.prompt.kind].append(held_out.is_right(group, sample))
                record[f"{group.prompt.kind}/worked"] += [style_of(answer) == "worked" for answer in answers]
    return {key: float(np.mean(marks)) for key, marks in record.items()}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Accuracy and worked turns by level and number of turns, and how each level trained."""
    measured = SeedRecords.of(results, LABELS, lambda result: {**result.evaluation, **_statistics(result)})
    kinds = [f"turns_{turns}" for turns in TURNS]
    rows = [(label, *(measured.spread(run, kind) for kind in kinds)) for run, label in LABELS.items()]
    gains = [(LABELS[level], *(measured.gain(level, kind, "sft") for kind in kinds)) for level in BANDS]
    over = [
        (f"{LABELS['turn']} over {LABELS[other]}", *(measured.gain("turn", kind, other) for kind in kinds))
        for other in ("sequence", "token")
    ]
    works = [(label, *(measured.spread(run, f"{kind}/worked", 2) for kind in kinds)) for run, label in LABELS.items()]
    training = [
        (
            LABELS[level],
            f"{low} to {high}",
            *(measured.spread(level, key, digits) for key, (_, _, digits) in SHARES.items()),
        )
        for level, (low, high) in BANDS.items()
    ]
    header = ("run", *(f"{turns} turns" if turns > 1 else "1 turn" for turns in TURNS))
    text = (
        f"Right samples at temperature 1, by the number of turns:\n\n{markdown_table(header, rows)}\n"
        f"Points over the start, and of a level over another:\n\n{markdown_table(header, gains + over)}\n"
        f"Share of the turns that are worked out:\n\n{markdown_table(header, works)}\n"
        f"How each level trained:\n\n"
        f"{markdown_table(('level', 'band', *(title for title, *_ in SHARES.values())), training)}\n"
        f"{HELD_OUT[1]} held-out problems of one turn and {HELD_OUT[2]} of each other number of turns, with {SAMPLES} "
        f"samples each; mean (lowest to highest) over "
        f"{len(measured.seeds)} seeds. Clipped: share of tokens, turns or episodes in which the ratio has no gradient, "
        f"each counted by its tokens. Reward: mean of all iterations, as a measure of how fast it rises.\n"
    )
    return Summary(text, _figure(results, measured, kinds))


def _statistics(result: RunResult) -> dict[str, float]:
    """Means over the iterations of a run by rewards; nothing of others, and of a run whose groups were all flat."""
    values = {name: curve(result, metric)[1] for name, (_, metric, _) in SHARES.items()}
    return {name: float(np.mean(each)) for name, each in values.items()} if all(values.values()) else {}


def _figure(results: dict[str, RunResult], measured: SeedRecords, kinds: list[str]):
    figure, axes = new_figure(2, 2, height=7.0)
    for run, label in LABELS.items():
        values_KN = [measured.values(run, kind) for kind in kinds]
        for number, of_seed in enumerate(zip(*values_KN, strict=True)):
            values = [np.nan if value is None else value for value in of_seed]
            axes[0, 0].plot(TURNS, values, "o-", color=COLORS[run], alpha=0.7, label=None if number else label)
    axes[0, 0].set_xscale("log", base=2)
    axes[0, 0].set_xticks(TURNS, TURNS)
    axes[0, 0].set_ylim(0, 1.02)
    style_axes(axes[0, 0], title="Right samples of held-out problems, by seed", x="turns", y="share")
    panels = {
        "reward": (axes[0, 1], "Reward", "mean of an iteration"),
        f"reward/turns_{TURNS[-1]}": (axes[1, 0], f"Reward of episodes of {TURNS[-1]} turns", "mean of an iteration"),
        "policy/clipped": (axes[1, 1], "Clipped, counted by tokens", "share"),
    }
    for metric, (panel, title, unit) in panels.items():
        for level in BANDS:
            seed_curves(panel, results, level, metric, label=LABELS[level], color=COLORS[level], linewidth=1)
        style_axes(panel, title=title, x="iteration", y=unit)
    for panel in axes.flat:
        legend(panel)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
