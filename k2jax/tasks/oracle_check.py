"""Plays a dataset's tasks with its oracle, which must earn 1, and with a policy that does nothing, which must earn 0.

In the place of a dataset's name stands the folder of a task in Harbor's format, or a folder of such folders. A dataset
without an oracle is played with the second alone, and a line says so.

Example:
    python -m k2jax.env.check tool_use --options=count=50
    python -m k2jax.env.check human_eval --split=test
    python -m k2jax.env.check FOLDER --images=images

It needs no model: it shows that the tasks, their environment, sandboxes and verifier work on this machine. The exit
code is 1 where an episode earns something else, or its machine fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import os
import time

from absl import flags

from k2jax import cli
from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.registry import oracles
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scaffolds.scripted import Policy, null_policy, play
from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.trajectory import Trajectory

_SHOWN = 5
"""Episodes that are named where their reward is not what it should be."""


async def play_all(
    tasks: Sequence[Task], policy: Policy, maker: EnvironmentMaker, scorer: Scorer, at_once: int
) -> list[Trajectory]:
    """Plays and scores every task; the episodes have the order of the tasks.

    Args:
        tasks: to play.
        policy: that plays them.
        maker: of the environments.
        scorer: of the episodes.
        at_once: episodes at a time.
    """
    room = asyncio.Semaphore(at_once)

    async def episode(task: Task) -> Trajectory:
        async with room:
            trajectory = await play(task, maker.make(task), policy)
            if trajectory.status != "masked":
                await scorer.judge(task, trajectory)
            return trajectory

    return await asyncio.gather(*map(episode, tasks))


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_list("options", [], "Options of the dataset, each name=value.", **to)
    flags.DEFINE_enum(
        "split", "train", ["train", "test", "all"], "Split of the dataset; all is of datasets that are read.", **to
    )
    flags.DEFINE_integer("count", 0, "Play the first so many tasks; 0 plays all.", **to, lower_bound=0)
    flags.DEFINE_string("sandbox", "bubblewrap", "Backend of sandboxes.", **to)
    flags.DEFINE_string("images", "", "What tasks may choose their images from: a folder; empty refuses all.", **to)
    flags.DEFINE_list(
        "hosts", [], "Hosts that sandboxes of tasks may reach that ask for them: HOST, https://HOST, HOST:PORT.", **to
    )


def main(values: flags.FlagValues, dataset: str) -> int:
    """Runs the command; the exit code is 1 where a reward is not what it should be."""
    options, split = list(values.options), values.split
    if os.path.isdir(dataset):  # a folder of tasks in Harbor's format
        dataset, options, split = "harbor", [f"path={dataset}", *options], "all"
    policies = [("null", null_policy, 0.0)]
    if dataset in oracles.names():
        policies.insert(0, ("oracle", oracles.get(dataset), 1.0))
    tasks = load_tasks(dataset, options, split)[: values.count or None]
    cores, begun, wrong = os.cpu_count() or 1, time.perf_counter(), False
    maker = EnvironmentMaker(values.sandbox, images=values.images, repositories=None, hosts=values.hosts)
    with VerifierPool(workers=min(4, cores), timeout=60.0, retries=1) as pool:
        asyncio.run(pool.judged_by(tasks))  # a package that is missing is said once, and not for every episode
        scorer = Scorer(pool, backend=make_backend(values.sandbox, images=values.images))
        if len(policies) == 1:
            print(f"{dataset}: it has no oracle, so that nothing shows that its tasks can be solved")
        for name, policy, expected in policies:
            episodes = asyncio.run(play_all(tasks, policy, maker, scorer, 2 * cores))
            missed = [e for e in episodes if e.reward is None or e.reward.value != expected]
            earning = f"{len(episodes) - len(missed)} of {len(episodes)}"
            print(f"{dataset}: {earning} episodes of the {name} policy earn {expected:g}")
            for episode in missed[:_SHOWN]:
                print(f"  {episode.task}: {episode.error or (episode.reward.value, dict(episode.reward.info))}")
            wrong |= bool(missed)
            for episode in episodes:
                if episode.reward is not None and (tests := episode.reward.info.get("uncontrolled")):
                    print(f"  {episode.task}: nothing shows a program that lies about {', '.join(tests)}")
    print(f"{len(policies) * len(tasks)} episodes in {time.perf_counter() - begun:.1f} s")
    return int(wrong)


def command() -> None:
    """Runs the command line."""
    cli.run(main, define, __doc__, positional=("dataset",))
