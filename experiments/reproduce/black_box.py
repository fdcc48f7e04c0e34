"""A small Kimi K2 learns to work with files through mini-swe-agent, which nobody changed, from rewards alone.

Reproduces: how KAT-Coder-V2 trains through agents that it does not own (KAT-Coder-V2, section 2; Kimi K2.5, appendix
D), at the scale of a laptop. Every episode starts the agent in a sandbox, where its commands run; its only way out is
its rollout at the gateway, which records what the model sampled; the reward compares the files that it leaves. The
model reads and writes characters. The agent's own templates, in the YAML of experiments/rl/agents/mini_compact.json,
are a system message of one word and the bare task; an answer is a command. The teacher of the start solves a quarter of
the tasks, which ask to write, rightly; of the others it does most carelessly: copies get a name that it made up, second
files are not joined, and the file that names another is copied itself. Beside reinforcement learning stands as much
more fine-tuning.
Expected: 20 points and more of held-out success over a start of 20 to 60 %; docs/reproductions.md has the figures of
three seeds. Most of the time goes to starting agents.

    python3 -m venv agents/venv && agents/venv/bin/pip install mini-swe-agent==2.4.6
    export K2JAX_AGENTS=$PWD/agents
    python -m k2jax.reproduce black_box --workdir=runs/black_box
"""

from pathlib import Path

import numpy as np

from k2jax.agents.dataset import load_tasks
from k2jax.config import resolve, source, task
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary
from k2jax.reproduce.figures import success_figure
from k2jax.reproduce.micro import NO_WAITING, write_data
from k2jax.reproduce.seeds import SeedRecords, for_seeds, minutes_of, seconds_of_samplers
from k2jax.reproduce.study_file import load_study_file
from k2jax.tasks.file_answers.teacher import file_demonstrations

base = load_study_file("nano_post_training")
AGENT = Path(__file__).parents[1] / "rl/agents/mini_compact.json"
KINDS = {"write": "write", "copy": "copy", "join": "join two", "follow": "follow a name"}
CARELESS = 0.7  # share of the teacher's careless solutions
DEMONSTRATIONS, SFT_STEPS, ITERATIONS = 12_000, 320, 20
HELD_OUT = 128  # problems: each costs the start of an agent, for its greedy episode and for a sampled one
SAMPLED = "eval/avg@1"
WAYS = {"eval/greedy": "greedy", SAMPLED: "sampled"}
LABELS = {
    "sft": "SFT, the start",
    "rl": "RL through the agent",
    "rl_workers": "RL, no waiting",
    "more_sft": "as much more SFT",
}
RL = base.RL | {"optimizer.learning_rate": 5e-4, "train.steps": ITERATIONS, "eval.every": 1000}
MORE = {"optimizer.learning_rate": 1e-3, "train.steps": base.get_config().rl.updates * ITERATIONS}


def get_config():
    """The model and rates of ``nano_post_training``, and the data and tasks that all runs share."""
    config = base.get_config()
    config.stage = "sft"
    config.data.sources = {"imperfect": source(kind="chat")}
    config.data.chat_format = "compact"
    config.train.steps = SFT_STEPS
    config.eval.every = 40
    files = task(dataset="file_answers", options=_options(10_000), max_tokens=40, steps=4)
    files.scaffold = f"black_box agent='{AGENT}' seconds=120"
    config.rl.tasks = {"files": files}
    config.rl.rollout.update({"prompts": 16, "samples": 4, "concurrency": 64, "max_length": 160})
    config.rl.eval_prompts = 0
    return config


def held_out_configs():
    """The configuration of the evaluation, whose tasks are loaded before the first run."""
    config = get_config()
    config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, 1
    return [config]


def _options(count: int) -> tuple[str, ...]:
    return f"kinds={'+'.join(KINDS)}", f"count={count}", "syllables=2"


def prepare(workdir: Path):
    """Writes the demonstrations."""
    problems = load_tasks("file_answers", _options(DEMONSTRATIONS))
    write_data(workdir, {"imperfect.jsonl": file_demonstrations(problems, CARELESS)})


def runs():
    """The start of each seed, and what continues from it."""
    return for_seeds(base.SEEDS, _chain)


def _chain(seed: int) -> dict[str, dict]:
    data = {"data.sources.imperfect.path": "{workdir}/imperfect.jsonl"}
    from_start = data | {"init_from": f"{{workdir}}/seed{seed}_sft"}
    by_rewards = {"rl": RL | from_start, "rl_workers": RL | NO_WAITING | from_start}
    return {"sft": data, **by_rewards, "more_sft": from_start | MORE}


def evaluate(config, workdir):
    """Success on held-out problems, greedily and sampled, by kind too, and what the agent's episodes cost."""
    from k2jax.rl.evaluation import evaluate_checkpoint

    held_out, groups = evaluate_checkpoint(resolve(*held_out_configs()), str(workdir))
    record = held_out.record(groups)
    for key, sample in (("eval/greedy", 0), (SAMPLED, 1)):
        for kind in KINDS:
            marks = [held_out.is_right(g, sample) for g in groups if g.prompt.task.domain.endswith(f"/{kind}")]
            record[f"{key}/{kind}"] = float(np.mean(marks))
    record["calls"] = float(np.mean([group.trajectories[1].metadata["counts"]["requests"] for group in groups]))
    return record


def summarize(results: dict[str, RunResult]) -> Summary:
    """Every run's success over seeds, and the points that it adds to the start, in all and by kind."""
    measured = SeedRecords.of(results, LABELS)
    gain = lambda run, key: measured.gain(run, key, "sft")  # noqa: E731
    rows = [
        (label, measured.spread(run, "eval/greedy"), gain(run, "eval/greedy"), measured.spread(run, SAMPLED),
         gain(run, SAMPLED), measured.spread(run, "calls", 2), measured.spread(run, "eval/length", 1))
        for run, label in LABELS.items()
    ]  # fmt: skip
    header = ("run", "greedy", "points over SFT", "sampled", "points over SFT", "calls of the model", "tokens")
    text = (
        f"Reinforcement learning through mini-swe-agent adds {gain('rl', 'eval/greedy')} points of greedy success and "
        f"{gain('rl', SAMPLED)} of sampled success to a start that solves {measured.spread('sft', 'eval/greedy')} "
        f"greedily and {measured.spread('sft', SAMPLED)} sampled.\n\n{markdown_table(header, rows)}\n"
        f"By kind of task:\n\n{measured.kinds_table(LABELS, KINDS, WAYS)}\n"
        f"{HELD_OUT} held-out tasks, one greedy and one sampled episode each; mean (lowest to highest) over "
        f"{len(measured.seeds)} seeds. Calls are of sampled episodes, tokens of greedy ones. Fine-tuning and "
        f"reinforcement learning took {minutes_of(results, ('sft', 'rl'))} minutes of training time a seed; "
        f"{seconds_of_samplers(results)}.\n"
    )
    title = "Episodes of training that are right"
    return Summary(text, success_figure(results, measured, LABELS, WAYS, what="tasks", title=title))


STUDY = Study(get_config, runs, summarize, prepare=prepare, held_out=held_out_configs, evaluate=evaluate)
