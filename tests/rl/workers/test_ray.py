"""The real loop over a Ray cluster of three nodes on this machine, of which one dies. Needs the extra ``ray``."""

import contextlib
import os
import signal
import time

import pytest

from k2jax.rl.workers.group_log import FOLDER
from tests.agents.collect.ray_cluster import three_nodes
from tests.rl.runs import SECONDS, start
from tests.rl.test_kills_with_sandboxes import assert_nothing_is_left, orphans, temporary  # noqa: F401
from tests.rl.workers.killing import TOOLS, Scenario, assert_every_prompt_once, below, complete, left_of, victims

pytestmark = pytest.mark.external


def raylet_of(node):
    return node.all_processes["raylet"][0].process.pid


def test_a_node_that_dies_in_an_iteration_costs_no_group_and_its_leases_go_to_the_others(
    tmp_path,
    request,
    temporary,  # noqa: F811
):
    scenario, workdir = Scenario(*TOOLS, workers=3), tmp_path / "run"
    (tmp_path / "config.py").write_text(scenario.config)
    with three_nodes() as (cluster, others):
        left = request.getfixturevalue("orphans")  # of what the cluster does not start by itself
        raylets = [raylet_of(node) for node in (cluster.head_node, *others)]
        process = start(tmp_path / "config.py", workdir, *scenario.flags, f"--config.rl.rollout.ray={cluster.address}")

        def is_at_work():
            """Each node has an actor with sandboxes, and the first groups are complete."""
            there = [victims(below(raylet)) for raylet in raylets]
            return all("sandbox" in each and "actor" in each for each in there) and complete(workdir / FOLDER, 4)

        deadline = time.monotonic() + SECONDS
        while not is_at_work() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        known, lost = complete(workdir / FOLDER, 4), [raylets[-1], *below(raylets[-1])]
        for pid in lost:  # as a machine that has no power any more
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, stderr
        assert known and len([node for node in raylets if os.path.exists(f"/proc/{node}/cwd")]) == 2
        assert assert_every_prompt_once(workdir, known, scenario.samples) == 0
        assert_nothing_is_left(lambda: (left_of(left()), list(temporary.glob("k2jax-sandbox-*"))))
