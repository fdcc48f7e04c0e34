"""A small orchestrator learns to use sub-agents: PARL beside a single agent, and what each part of it does.

Reproduces: the agent swarm of Kimi K2.5 (section 3, figures 4, 7 and 8, table 6) at the scale of a laptop, and
ablations that the report does not print. A model of a million parameters is fine-tuned on wide questions that are
looked up one key after another, in a few of which sub-agents look them up; see experiments/rl/swarm_nano.py. Then an
orchestrator is trained over sub-agents that are the frozen start: with PARL's annealed rewards, without either or both
of them, without annealing, together with its sub-agents, with a budget of all steps in the place of critical ones, and
with larger sub-agents from the middle on. Single agents have as many responses, and that budget or an ample one.
Expected: docs/reproductions.md has the figures.

    python -m k2jax.reproduce swarm --workdir=runs/swarm
"""

from pathlib import Path

from k2jax.agents.dataset import load_tasks
from k2jax.config import config_beside, source
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import BY_REWARDS, micro_config, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.reproduce.swarms import WAYS, budget_key, measured_episodes, needed_table
from k2jax.tasks.lookups.demonstrations import lookup_demonstrations

SEEDS = (0, 1, 2)
WIDTHS = (2, 4, 6, 8)
KINDS = "+".join(f"wide{width}" for width in WIDTHS)
HELD_OUT = 400
AMPLE = 40
"""Critical steps of an episode that are enough for serial work; those of the experiment cut it at six keys."""
BUDGETS = (4, 6, 8, 10, 14, 20, 28, 40)
"""Critical steps at which the widest questions are measured."""
THRESHOLDS = (0.3, 0.5, 0.7)
SWEPT = ("parl", "single_ample")
"""Runs whose Item-F1 is measured at every budget."""
ITERATIONS = 60
LABELS = {
    "sft": "the start",
    "parl": "PARL",
    "no_parallel": "without r_parallel",
    "no_finish": "without r_finish",
    "no_terms": "without both",
    "held": "not annealed",
    "joint": "sub-agents learn, too",
    "total": "budget of all steps",
    "total_no_terms": "budget of all steps, without both",
    "larger": "larger sub-agents half-way",
    "single": "single agent",
    "single_ample": "single agent, ample budget",
}
MEASURES = {"items": "items right", "exact": "exact", "critical_steps": "critical steps", "parallelism": "parallelism"}
CONTEXTS = ("hide_tool_result", "discard_all")
CONTEXT_TOKENS = 120


def get_config():
    """The model, the data and the tasks that all runs share."""
    config = micro_config("sft", 1280)
    config.data.sources = {"wide": source(kind="chat", weight=3.0), "single": source(kind="chat")}
    config.data.chat_format = "compact"
    config.data.sequence_length = 352
    config.eval.every = 320
    config.rl = config_beside(str(Path(__file__).parent.parent / "rl" / "swarm.py"), "swarm_nano.py").rl
    config.rl.tasks.lookups.options = (f"kinds={KINDS}", "count=20000")
    config.rl.eval_prompts = 0
    return config


def held_out_config(**choices):
    """The configuration of the evaluation, with other choices for the class of tasks."""
    config = get_config()
    config.rl.tasks.lookups.update(choices)
    config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, 1
    return config


def prepare(workdir: Path):
    """Writes the demonstrations."""
    wide = load_tasks("lookups", (f"kinds={KINDS}", "count=18000", "seed=100"))
    single = load_tasks("lookups", ("kinds=wide1", "count=6000", "seed=100"))
    write_data(workdir, {"wide.jsonl": lookup_demonstrations(wide), "single.jsonl": lookup_demonstrations(single)})


def runs():
    """The start of each seed, a larger model, and what continues from the start."""
    return for_seeds(SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    data = {f"data.sources.{name}.path": f"{{workdir}}/{name}.jsonl" for name in ("wide", "single")}
    start, tools = f"{{workdir}}/seed{seed}_sft", "rl.tasks.lookups.tools"
    (store, swarm) = get_config().rl.tasks.lookups.tools
    by_rewards = data | BY_REWARDS | {"init_from": start, "rl.roles.helper.checkpoint": start}
    by_rewards |= {"optimizer.learning_rate": 5e-4, "train.steps": ITERATIONS}
    none = {"rl.parl.parallel": 0.0, "rl.parl.finish": 0.0}
    alone = by_rewards | none | {tools: (store,)}
    all_steps = {"rl.tasks.lookups.critical_steps": 0, "rl.tasks.lookups.total_steps": AMPLE}
    later = {"later": (f"{{workdir}}/seed{seed}_larger_sft",), "later_from": (ITERATIONS // 2 + 1,)}
    return {
        "sft": data | {"rl.roles.helper.checkpoint": start},
        "larger_sft": data | {"model.d_model": 192},
        "parl": by_rewards,
        "no_parallel": by_rewards | {"rl.parl.parallel": 0.0},
        "no_finish": by_rewards | {"rl.parl.finish": 0.0},
        "no_terms": by_rewards | none,
        "held": by_rewards | {"rl.parl.decay": 0.0},
        "joint": by_rewards | {"rl.parl.joint": "shared", tools: (store, swarm.replace(" role=helper", ""))},
        "total": by_rewards | all_steps,
        "total_no_terms": by_rewards | none | all_steps,
        "larger": by_rewards | {f"rl.roles.helper.{key}": value for key, value in later.items()},
        "single": alone,
        "single_ample": alone | {"rl.tasks.lookups.critical_steps": AMPLE},
    }


def evaluate(config, workdir):
    """Held-out questions, by width too; what the widest need; and of single agents methods of context."""
    if workdir.name.endswith("larger_sft"):
        return {}
    own = config.rl.tasks["lookups"]
    helper = config.rl.roles.helper.checkpoint
    choices = {"tools": own.tools, "critical_steps": own.critical_steps, "total_steps": own.total_steps}
    record = _measured(workdir, helper, choices)
    widest = choices | {"options": (f"kinds=wide{WIDTHS[-1]}", "count=20000"), "total_steps": 0}
    if workdir.name.endswith(SWEPT):
        for budget in BUDGETS:
            at_budget = _measured(workdir, helper, widest | {"critical_steps": budget}, count=100)
            record[budget_key(budget)] = at_budget["greedy/item_f1"]
    if workdir.name.endswith("_single_ample"):
        for context in CONTEXTS:
            scaffold = {"scaffold": f"chat context={context} tokens={CONTEXT_TOKENS}"}
            for name, value in _measured(workdir, helper, choices | scaffold, count=100).items():
                record[f"{context}/{name}"] = value
    return record


def _measured(workdir, helper, choices, count: int = HELD_OUT):
    config = held_out_config(**choices)
    config.rl.eval_prompts = count
    config.rl.roles.helper.checkpoint = helper
    return measured_episodes(config, workdir)


def summarize(results: dict[str, RunResult]) -> Summary:
    """Every run over seeds, by width, and what the widest questions need."""
    names = {name: label for name, label in LABELS.items() if f"seed{SEEDS[0]}_{name}" in results}
    measured = SeedRecords.of(results, names)
    header = ("run", *MEASURES.values(), "created", "used", "finished", "truncated")
    keys = (*MEASURES, "created", "used", "finished", "truncated")
    text = ""
    for way in WAYS:
        rows = [(label, *(measured.spread(run, f"{way}/{key}", 2) for key in keys)) for run, label in names.items()]
        text += f"{way.capitalize()} answers to {HELD_OUT} held-out questions:\n\n{markdown_table(header, rows)}\n"
    widest = f"greedy/wide{WIDTHS[-1]}"
    rows = [
        (label, *(measured.spread(run, f"{widest}/{key}", 2) for key in ("items", "item_f1", *list(MEASURES)[1:])))
        for run, label in names.items()
    ]
    text += f"\nThe widest, of {WIDTHS[-1]} keys, greedily:\n\n"
    text += f"{markdown_table(('run', 'items right', 'Item-F1', *list(MEASURES.values())[1:]), rows)}\n"
    text += needed_table(measured, {run: LABELS[run] for run in SWEPT}, BUDGETS, THRESHOLDS)
    text += _contexts(measured)
    return Summary(text, _figure(results, measured, names))


def _contexts(measured) -> str:
    rows = []
    for context in ("", *CONTEXTS):
        before = f"{context}/" if context else ""
        values = (measured.spread("single_ample", f"{before}greedy/{key}", 2) for key in MEASURES)
        rows.append((context or LABELS["single_ample"], *values))
    rows.append((LABELS["parl"], *(measured.spread("parl", f"greedy/{key}", 2) for key in MEASURES)))
    return f"\nManaged contexts of the single agent, greedily:\n\n{markdown_table(('run', *MEASURES.values()), rows)}\n"


def _figure(results, measured, names):
    figure, axes = new_figure(1, 3, height=4.0)
    score, parallelism, f1_panel = axes[0]
    seed_curves(score, results, "parl", "swarm/score", label="items right", color=PALETTE[0])
    style_axes(score, title="PARL: share of right items", x="iteration", y="share")
    legend(score)
    for number, run in enumerate(name for name in ("parl", "no_terms", "total", "total_no_terms") if name in names):
        seed_curves(parallelism, results, run, "swarm/parallelism", label=LABELS[run], color=PALETTE[number])
    style_axes(parallelism, title="Parallelism", x="iteration", y="total steps / critical steps")
    parallelism.set_ylim(0.9, 5.2)  # the names stand above the curves
    legend(parallelism)
    for number, run in enumerate(SWEPT):
        for place, record in enumerate(measured.runs[run]):
            f1 = [record[budget_key(budget)] for budget in BUDGETS]
            f1_panel.plot(BUDGETS, f1, "o-", color=PALETTE[number], alpha=0.7, label=None if place else LABELS[run])
    style_axes(f1_panel, title=f"Item-F1 of {WIDTHS[-1]} keys", x="budget of critical steps", y="Item-F1")
    legend(f1_panel)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=lambda: [held_out_config()], evaluate=evaluate)
