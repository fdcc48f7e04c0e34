"""An iteration of reinforcement learning: its rollouts against transformers' ``generate`` in the same loop, its phases.

Both sides run the episodes of the loop, verdicts included, on the same prompts with the same weights in float32, at
temperature 1 with the same limits; only the client differs. A rate counts the tokens up to the end of each response.
``generate`` runs batches of as many rows as the engine has slots, without log-probabilities. Responses of random
lengths show continuous batching; where almost all are cut at one length, the rest remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import dataclasses
from pathlib import Path
import statistics
import tempfile

from k2jax.bench.rl_baseline import GenerateClient, fastest_generate, start_weights
from k2jax.bench.rl_loop import PROMPT, PROMPTS, SAMPLES, SLOTS, BenchLoop, bench_config
from k2jax.bench.rl_tasks import register
from k2jax.bench.timing import Clock, Row, interleaved, rate_row, time_row
from k2jax.config import Config
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.inference import LockstepClient
from k2jax.text.chat import configured_chat

LENGTHS = {"random lengths": 192, "cut at 24": 24}  # most tokens of a response
MODELS = ("micro",)
MAX_ITERATIONS = 5  # whose phases are timed


def measure(rounds: int = 10) -> list[Row]:
    """Rows of rollout tokens per second for each model and kind of lengths, and of an iteration's phases."""
    register()
    return [row for name in MODELS for row in _measure_model(name, rounds)]


def _measure_model(name: str, rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="k2jax-bench-") as folder:
        config = bench_config(name, max(LENGTHS.values()))
        tokenizer = prepare_tokenizer(config.data)
        tokenizer.save(Path(folder) / "run" / "tokenizer")
        end = configured_chat(tokenizer, config.data.chat_format).end
        config = dataclasses.replace(config, init_from=str(start_weights(config.model, end, Path(folder))))
        with _Loop(config, Path(folder)) as loop:
            rows = [_rollout_row(loop, name, kind, max_tokens, rounds) for kind, max_tokens in LENGTHS.items()]
            return [*rows, *_phase_rows(loop, name, min(rounds, MAX_ITERATIONS))]


class _Loop(BenchLoop):
    """What the loop of ``k2jax.rl`` opens, and the baseline."""

    def __init__(self, config: Config, folder: Path):
        super().__init__(config, folder)
        prompts = [self.prompt_tokens(number) for number in range(SLOTS // SAMPLES)]
        self.baseline, generate = fastest_generate(folder, prompts, SAMPLES)
        self.generate_client = GenerateClient(generate, SLOTS)


def _rollout_row(loop: _Loop, name: str, kind: str, max_tokens: int, rounds: int) -> Row:
    counts: dict[str, list[int]] = {"ours": [], "base": []}

    def side(which: str, client: LockstepClient | GenerateClient) -> Callable[[], None]:
        prompts = loop.prompts(max_tokens, client)

        def run() -> None:
            groups = loop.event_loop.run(prompts.collect(1 + len(counts[which])))
            counts[which].append(sum(each.sampled_tokens for group in groups for each in group.trajectories))

        return run

    sides = {"ours": side("ours", loop.client), "base": side("base", loop.generate_client)}
    seconds = interleaved(sides, rounds, warmup=1)
    rates = {which: statistics.median(counts[which][-rounds:]) / seconds[which] for which in sides}
    responses = PROMPTS * SAMPLES
    mean = statistics.median(counts["ours"][-rounds:]) / responses
    title = f"{name} rollouts, {responses} responses of {mean:.0f} ({kind}) to {PROMPT}-token prompts"
    return rate_row(title, rates["ours"], rates["base"], "tokens/s", f"transformers generate, {loop.baseline}")


def _phase_rows(loop: _Loop, name: str, rounds: int) -> list[Row]:
    """Median times of the phases of whole iterations; scoring overlaps with the rollouts, and is also timed alone."""
    prompts, times = loop.prompts(max(LENGTHS.values()), loop.client), []
    for step in loop.run.steps():
        clock, laps = Clock(), {}
        groups = loop.event_loop.run(prompts.collect(step))
        laps["rollouts with scoring"] = clock.lap()
        for number, packed in loop.trainer.pack(groups).items():
            loop.trainer.update(number, packed.rows)
        laps["packing and training"] = clock.lap()
        loop.sync.push(loop.run.state.params, step)
        laps["weight sync"] = clock.lap()
        whole = sum(laps.values())
        loop.event_loop.run(_judge(loop, groups))
        laps["scoring alone"] = clock.lap()
        times.append({**laps, "whole": whole})
        if len(times) == rounds + 1:
            break
    medians = {phase: statistics.median(time[phase] for time in times[1:]) for phase in times[0]}  # the first compiles
    whole = medians.pop("whole")
    title = f"{name} iteration: {{}}"
    return [time_row(title.format(phase), seconds, whole, "the whole iteration") for phase, seconds in medians.items()]


async def _judge(loop: _Loop, groups: list) -> None:
    pairs = [(group.prompt.task, each) for group in groups for each in group.trajectories]
    await asyncio.gather(*(loop.scorer_without_log.judge(*pair) for pair in pairs))
