"""Runs of the sampler that does not wait: what can be killed of them, and what they must come to all the same."""

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import random
import signal
from typing import NamedTuple

import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.gateway.repository import SMALL_AGENT, small_agent
from tests.agents.sandbox.backends import processes_below
from tests.rl import sandboxed, swarmed
from tests.rl.test_black_box import config_with_agent
from tests.rl.test_kills_with_sandboxes import names

STEPS = 6
FLAGS = (
    f"--config.train.steps={STEPS}",
    "--config.rl.eval_prompts=2",
    "--config.rl.keep_trajectories=100",
    "--config.rl.rollout.sampler=workers",
    "--config.rl.rollout.token_cap=0",
)
AGENTS = """
from pathlib import Path

from tests.rl.workers.killing import agents_config

def get_config():
    return agents_config(Path(__file__).parent)
"""


def agents_config(folder):
    """Runs of a black-box agent that takes all the turns that it has."""
    steadfast = SMALL_AGENT.replace("    if not lines: break\n", "    lines = lines or ['sleep 0.2']\n")
    agent = small_agent(files={"${home}/agent.py": steadfast.replace("$", "$$")})
    return config_with_agent(folder, agent, prompts=4, samples=2)


class Scenario(NamedTuple):
    """A kind of run.

    Attributes:
        workers: processes, or actors.
        samples: of each of its four prompts an iteration.
        write: writes its config file, and what that names, into a folder; the second argument is ``monkeypatch``.
        check: asserts what holds of the folder of a run at its end.
        live: sub-agents at work of the runs in a folder.
    """

    workers: int
    samples: int
    write: Callable[[Path, pytest.MonkeyPatch], None]
    check: Callable[[Path], None] = lambda workdir: None
    live: Callable[[Path], int] = lambda folder: 0

    @property
    def flags(self):
        """Of the command."""
        return [*FLAGS, f"--config.rl.rollout.workers={self.workers}"]


PROMPTS = 4
TOOLS = 4, lambda folder, patch: (folder / "config.py").write_text(sandboxed.CONFIG_FILE)
HARNESS = 2, lambda folder, patch: (folder / "config.py").write_text(AGENTS)
SWARM = 4, swarmed.write_run, swarmed.assert_had_sub_agents, swarmed.live


def _is_forwarder(command, name):
    return b"MOST_BUFFERED" in command and name != "bwrap"


VICTIMS = {
    "worker": lambda command, name: b"agents.collect.worker" in command,
    "actor": lambda command, name: name.startswith("ray::_Actor"),
    "spawner": lambda command, name: b"sandbox.spawner_process import run" in command,
    "verifier": lambda command, name: b"verifier_pool" in command,
    "sandbox": lambda command, name: name == "bwrap",
    "gateway's way in": _is_forwarder,
    "agent": lambda command, name: b"agent.py" in command and name != "bwrap" and not _is_forwarder(command, name),
}
"""Kinds of processes below a run, or below the nodes of a cluster."""


def victims(pids):
    """Processes by their kinds."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            command, name = (Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "comm"))
            for kind, is_one in VICTIMS.items():
                if command and is_one(command, name.decode().strip()):
                    found.setdefault(kind, []).append(pid)
    return found


def kill_one(pids):
    """Kills a process of a kind that is chosen first; returns the kind, or None where there was nobody to kill."""
    there = victims(pids)
    kind = random.choice(sorted(there)) if there else None
    if kind is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(there[kind]), signal.SIGKILL)
    return kind


def below(*pids):
    """Pids of everything that some processes have started."""
    return set().union(*map(processes_below, pids))


def left_of(pids):
    """Names of processes, but for those that a cluster keeps for the next actor."""
    return [name for name in names(pids) if not name.startswith("ray::IDLE")]


def complete(folder, samples):
    """What a run's log of groups holds as complete at this moment, by the key of the group: tokens and rewards."""
    store, of_place = TrajectoryStore(folder), {}
    for step in store.steps():
        try:
            for trajectory in store.read(step):
                of_place.setdefault(trajectory.key[:2], {})[trajectory.key[2]] = content(trajectory)
        except UserError:  # deleted meanwhile, since every checkpoint has counted it
            continue
    return {place: of_group for place, of_group in of_place.items() if len(of_group) == samples}


def content(trajectory):
    """What makes a trajectory another one, and each of those of its sub-agents."""
    tokens = np.concatenate([node.tokens for node in trajectory.nodes] or [np.zeros(0, np.int32)]).tobytes()
    below = tuple((number, content(ended)) for number, ended in sorted(trajectory.spawned.items()))
    return tokens, trajectory.status, trajectory.reward and trajectory.reward.value, below


def assert_every_prompt_once(workdir, known, samples):
    """The store of a run has each of its prompts once, with every group that was ever complete as it was then.

    Returns:
        How many of its samples are masked.
    """
    assert [record["step"] for record in read_metrics(workdir) if "reward" in record] == list(range(1, 1 + STEPS))
    stored = TrajectoryStore(workdir / "trajectories")
    trained = [trajectory for step in stored.steps() for trajectory in stored.read(step)]
    expected = [(i, j, k) for i in range(1, 1 + STEPS) for j in range(PROMPTS) for k in range(samples)]
    assert sorted(trajectory.key for trajectory in trained) == expected
    of_key = {trajectory.key: content(trajectory) for trajectory in trained}
    for place, of_group in known.items():
        for sample, once in of_group.items():
            assert of_key[(*place, sample)] == once, f"the group {place} was complete and sampled again"
    return sum(trajectory.status == "masked" for trajectory in trained)
