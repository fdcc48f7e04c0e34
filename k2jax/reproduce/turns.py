"""What the studies of episodes of several turns share: a fine-tuned start, rewards, and what episodes do with tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
import numpy as np

from k2jax.config import resolve, source, task
from k2jax.report.table import markdown_table
from k2jax.reproduce.figures import success_figure
from k2jax.reproduce.micro import BY_REWARDS, NO_WAITING, micro_config
from k2jax.reproduce.results import RunResult, Summary
from k2jax.reproduce.seeds import SeedRecords, for_seeds, minutes_of, seconds_of_samplers
from k2jax.reproduce.study_file import Study
from k2jax.trajectory import Trajectory

SEEDS = (0, 1, 2)
HELD_OUT, SAMPLES = 500, 4
"""Held-out problems, and sampled episodes of each."""
AVERAGE, PASS = f"eval/avg@{SAMPLES}", f"eval/pass@{SAMPLES}"
WAYS = {"eval/greedy": "greedy", AVERAGE: f"Avg@{SAMPLES}"}
_UPDATES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turns:
    """One study.

    Attributes:
        name: of the study, and of its class of tasks.
        dataset: of the problems.
        kinds: what each kind of problem is called in tables.
        teachers: sources of demonstrations.
        sft_steps: of fine-tuning.
        iterations: of reinforcement learning.
        steps: most calls of the model in an episode.
        calls: an episode with this number of calls of tools does what rewards should find.
        does: what such an episode does, for headings: ``call``.
    """

    name: str
    dataset: str
    kinds: Mapping[str, str]
    teachers: tuple[str, ...]
    sft_steps: int
    iterations: int
    steps: int
    calls: int
    does: str

    @property
    def labels(self) -> dict[str, str]:
        """Names of the runs in tables."""
        return {"sft": "SFT, the start", "rl": "RL", "rl_workers": "RL, no waiting", "more_sft": "as much more SFT"}

    def config(self) -> ConfigDict:
        """The model and rates of ``nano_post_training``, and the data and tasks that all runs share."""
        config = micro_config("sft", self.sft_steps)
        config.data.sources = {name: source(kind="chat") for name in self.teachers}
        config.data.chat_format = "compact"
        config.eval.every = 40
        options = self.options(20_000)
        config.rl.tasks = {self.name: task(dataset=self.dataset, options=options, max_tokens=32, steps=self.steps)}
        config.rl.rollout.update({"prompts": 32, "max_length": 160})
        config.rl.updates = _UPDATES
        config.rl.eval_prompts = 0
        return config

    def held_out_config(self) -> ConfigDict:
        """The configuration of the evaluation."""
        config = self.config()
        config.rl.eval_prompts, config.rl.eval_samples = HELD_OUT, SAMPLES
        return config

    def options(self, count: int, kinds: str = "") -> tuple[str, str]:
        """Options of the dataset: the number of problems, of the study's kinds or others."""
        return f"kinds={kinds or '+'.join(self.kinds)}", f"count={count}"

    def runs(self) -> dict[str, dict]:
        """The start of each seed, and what continues from it: rewards, with both samplers, and more fine-tuning."""
        return for_seeds(SEEDS, self._chain)

    def _chain(self, seed: int) -> dict[str, dict]:
        data = {f"data.sources.{name}.path": f"{{workdir}}/{name}.jsonl" for name in self.teachers}
        from_start = data | {"init_from": f"{{workdir}}/seed{seed}_sft"}
        rewards = BY_REWARDS | {"optimizer.learning_rate": 5e-4, "train.steps": self.iterations, "eval.every": 14}
        more = {"optimizer.learning_rate": 1e-3, "train.steps": _UPDATES * self.iterations}
        by_rewards = {"rl": rewards | from_start, "rl_workers": rewards | NO_WAITING | from_start}
        return {"sft": data, **by_rewards, "more_sft": from_start | more}

    def evaluate(self, workdir: Path) -> dict[str, Any]:
        """Success on held-out problems, greedily and sampled, by kind too, and what the sampled episodes do."""
        from k2jax.rl.evaluation import evaluate_checkpoint

        held_out, groups = evaluate_checkpoint(resolve(self.held_out_config()), str(workdir))
        scored = [
            (group.prompt.task.domain, calls_of(group.trajectories[sample]), held_out.is_right(group, sample))
            for group in groups
            for sample in range(1, 1 + SAMPLES)
            if group.trajectories[sample].reward is not None
        ]
        record = held_out.record(groups) | {"calls": float(np.mean([calls for _, calls, _ in scored]))}
        record["called"] = float(np.mean([calls >= self.calls for _, calls, _ in scored]))
        for key, does in (("right_called", True), ("right_direct", False)):
            marks = [right for _, calls, right in scored if (calls >= self.calls) == does]
            record[key] = float(np.mean(marks)) if marks else None
        for kind in self.kinds:
            record[f"{AVERAGE}/{kind}"] = float(np.mean([right for domain, _, right in scored if domain == kind]))
        return record

    def summarize(self, results: dict[str, RunResult]) -> Summary:
        """Every run's success over seeds, and the points that it adds to the start, in all and by kind."""
        measured = SeedRecords.of(results, self.labels)
        header, rows = self._rows(measured)
        of_kinds = measured.kinds_table(self.labels, self.kinds, WAYS)
        text = (
            f"Reinforcement learning adds {measured.gain('rl', 'eval/greedy', 'sft')} points of greedy success and "
            f"{measured.gain('rl', AVERAGE, 'sft')} of Avg@{SAMPLES} to a start that solves "
            f"{measured.spread('sft', 'eval/greedy')} greedily and {measured.spread('sft', AVERAGE)} sampled.\n\n"
            f"{markdown_table(header, rows)}\nBy kind of problem:\n\n{of_kinds}\n"
            f"{HELD_OUT:,} held-out problems; mean (lowest to highest) over {len(measured.seeds)} seeds. Calls and "
            f"what is right with and without them are of sampled episodes, tokens of greedy ones. Fine-tuning and "
            f"reinforcement learning took {minutes_of(results, ('sft', 'rl'))} minutes of training time a "
            f"seed; {seconds_of_samplers(results)}.\n"
        )
        return Summary(text, success_figure(results, measured, self.labels, WAYS, what="problems"))

    def _rows(self, measured: SeedRecords) -> tuple[Sequence[str], list[tuple[str, ...]]]:
        """Heading and rows of the table of runs."""
        does = (f"episodes that {self.does}", f"right if they {self.does}", "right if not", "calls", "tokens")
        points = "points over SFT"
        header = ("run", "greedy", points, f"Avg@{SAMPLES}", points, f"pass@{SAMPLES}", *does)
        keys = (PASS, "called", "right_called", "right_direct")
        rows = [
            (label, measured.spread(run, "eval/greedy"), measured.gain(run, "eval/greedy", "sft"),
             measured.spread(run, AVERAGE), measured.gain(run, AVERAGE, "sft"),
             *(measured.spread(run, key) for key in keys), measured.spread(run, "calls", 2),
             measured.spread(run, "eval/length", 1))
            for run, label in self.labels.items()
        ]  # fmt: skip
        return header, rows

    def study(self, prepare: Callable[[Path], None]) -> Study:
        """The study whose demonstrations ``prepare`` writes, a file for each teacher."""
        return Study(
            self.config,
            self.runs,
            self.summarize,
            prepare=prepare,
            held_out=lambda: [self.held_out_config()],
            evaluate=lambda config, workdir: self.evaluate(workdir),
        )


def calls_of(trajectory: Trajectory) -> int:
    """How many calls of tools the model has written in an episode."""
    return sum(len(node.message.get("tool_calls") or ()) for node in trajectory.nodes)
