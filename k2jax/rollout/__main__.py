r"""Collects and scores trajectories of the tasks of a config, with a checkpoint or an OpenAI-compatible server.

Example:
    python -m k2jax.rollout --config=experiments/rl/tools_nano.py --checkpoint=runs/sft-tools-nano \
        --workdir=runs/rollouts --tasks=200 --samples=4
    python -m k2jax.rollout --config=experiments/rl/tools_nano.py --url=http://localhost:8000 --model=k2 \
        --tokenizer=runs/sft-tools-nano --workdir=runs/rollouts-served --tasks=200

A command that was stopped or killed continues when it is given again; nothing is lost or doubled. What it has collected
is in the workdir, where python -m k2jax.trajectories finds it. The server has to take and return token ids, as
python -m k2jax.serve and vLLM do; $OPENAI_API_KEY is sent to it.

python -m k2jax.rollout engine --follow=RUN starts an engine for a run of reinforcement learning; it has a --help.
"""

import asyncio
import json
from pathlib import Path
import sys
import time

from absl import flags

from k2jax import cli, runtime
from k2jax.errors import UserError
from k2jax.rollout import engine

INTERRUPTED = 130
_INTERVAL = 5.0  # between two lines of progress [s]


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    cli.define_config(values)
    flags.DEFINE_string("workdir", None, "Folder of the collection.", **to)
    flags.DEFINE_string("checkpoint", None, "Workdir, step of one, Hugging Face folder, hub:ORG/NAME or smollm2.", **to)
    flags.DEFINE_string("url", None, "An OpenAI-compatible server instead, without /v1.", **to)
    flags.DEFINE_string("model", None, "The server's name for its model.", **to)
    flags.DEFINE_string("tokenizer", None, "With --url: a checkpoint or file with the model's vocabulary.", **to)
    flags.DEFINE_enum(
        "split", "train", ("train", "test", "all"), "Tasks to train on, held-out ones, or all of a file.", **to
    )
    flags.DEFINE_integer("tasks", 100, "Number of tasks, drawn from config.rl.tasks.", **to, lower_bound=1)
    flags.DEFINE_integer("samples", 1, "Episodes of each task.", **to, lower_bound=1)
    flags.DEFINE_integer("workers", 2, "Processes that run episodes.", **to, lower_bound=1)
    flags.DEFINE_integer("engines", 1, "Processes with an engine of the checkpoint each.", **to, lower_bound=1)
    flags.DEFINE_integer("capacity", 1024, "Episodes that a process runs at a time.", **to, lower_bound=1)
    flags.DEFINE_integer("metrics_port", 0, "Serve Prometheus metrics on 127.0.0.1; 0: do not.", **to, lower_bound=0)
    flags.DEFINE_string("ray", "", "Ray cluster that runs the workers: its address, auto, or local.", **to)
    flags.DEFINE_bool("trace", False, "Write trace.json for chrome://tracing.", **to)
    flags.DEFINE_bool("verify", False, "Check the trajectories of the workdir instead.", **to)
    flags.DEFINE_bool("deterministic", False, "Answer one request at a time: every run gives the same bits.", **to)


def main(values: flags.FlagValues) -> int:
    """Runs the command; returns its exit code."""
    cli.require(values, "workdir")
    if values.verify:
        return _verify(values.workdir)
    cli.require(values, "config")
    if (values.checkpoint is None) == (values.url is None):
        raise UserError("give either --checkpoint or --url; --help shows an example")
    if values.url is not None:
        cli.require(values, "model", "tokenizer")
    runtime.prepare()
    from k2jax.agents.collect.event_loop import run
    from k2jax.agents.collect.monitoring import ChromeTrace, CollectionProgress, serve_metrics

    config, folder = cli.config_of(values), Path(values.workdir)
    collection = _collection(values, config, folder)
    total = collection.prepare(_tasks(config, values.split, values.tasks))
    progress = CollectionProgress(total, config.rl.correct_reward, collection.emissions())
    printed = time.monotonic()

    def report(emission: object) -> None:
        nonlocal printed
        progress.add(emission)
        if time.monotonic() - printed >= _INTERVAL:
            printed = time.monotonic()
            print(progress.line(), flush=True)

    def serve(manager: object) -> None:
        if values.metrics_port:
            serve_metrics(manager, progress.record, values.metrics_port)

    trace = ChromeTrace() if values.trace else None
    try:
        run(collection.run(report, opened_manager=serve, trace=trace))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"\ninterrupted at {progress.line()}; the same command continues")
        return INTERRUPTED
    finally:
        if trace is not None:
            trace.write(folder / "trace.json")
    path = collection.write_trajectories()
    (folder / "results.json").write_text(json.dumps(progress.record(), indent=1) + "\n")
    print(progress.line())
    print(path)
    return 0


def _collection(values: flags.FlagValues, config, folder: Path):
    from k2jax.agents.collect.collection import AnswerSource, Collection
    from k2jax.convert.loading import tokenizer_of
    from k2jax.serve.media_readers import checkpoint_reader

    source = AnswerSource(values.checkpoint or "", values.url or "", values.model or "")
    return Collection(
        config,
        folder,
        source,
        tokenizer_of(values.tokenizer or values.checkpoint),
        samples=values.samples,
        workers=values.workers,
        capacity=values.capacity,
        engines=values.engines,
        ray=values.ray,
        deterministic=values.deterministic,
        media=values.checkpoint is not None and checkpoint_reader(values.checkpoint) is not None,
    )


def _verify(folder: str) -> int:
    """Compares the journal with what is stored; returns the exit code."""
    from k2jax.agents.collect.monitoring import verify_collection

    count, problems = verify_collection(folder)
    for problem in problems:
        print(problem)
    print(f"{count:,} trajectories, {len(problems):,} problems")
    return 1 if problems else 0


def _tasks(config, split: str, count: int) -> list:
    """Tasks with their classes, the same ones at every start, whose verifiers can be loaded."""
    from k2jax.agents.collect.event_loop import run
    from k2jax.agents.mixture import TaskMixture
    from k2jax.agents.scaffolds.check_place import check_place
    from k2jax.agents.verifier_pool.pool import VerifierPool

    mixture = TaskMixture(config.rl.tasks, config.train.seed)
    drawn = mixture.held_out(count, split) if split != "train" else [mixture.prompt(number) for number in range(count)]
    check_place(drawn, config.rl.rollout.sandbox)
    with VerifierPool(workers=1) as pool:
        run(pool.judged_by(each.task for each in drawn))
    return [(each.kind, each.task) for each in drawn]


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        del sys.argv[1]
        cli.run(engine.main, engine.define, engine.__doc__)
    cli.run(main, define, __doc__)
