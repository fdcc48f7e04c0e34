"""Runs whose processes are killed at random moments: no group is lost, none is trained on twice, no sandbox is left.

``K2JAX_TEST_KILLS=50 python -m pytest -m slow tests/rl/workers/test_kills.py`` kills more often, and
``-m "slow or external"`` kills actors of a Ray cluster too, for which it needs the extra ``ray``.
"""

from collections import Counter
import contextlib
import os
import random
import time

import pytest

from k2jax.rl.workers.group_log import FOLDER
from tests.agents.collect.ray_cluster import three_nodes
from tests.conftest import SLOW_SECONDS
from tests.rl.runs import SECONDS, run_to_the_end, start
from tests.rl.test_kills import MOMENTS
from tests.rl.test_kills_with_sandboxes import assert_nothing_is_left, groups, orphans, temporary  # noqa: F401
from tests.rl.workers.killing import (
    HARNESS,
    SWARM,
    TOOLS,
    Scenario,
    assert_every_prompt_once,
    below,
    complete,
    kill_one,
    left_of,
)

KILLS = int(os.environ.get("K2JAX_TEST_KILLS", "5"))
MOMENT_NAMES = ["start", "rollout", "training", "saved", "group"]


@pytest.fixture
def cluster(request, temporary):  # noqa: F811 (its nodes keep sandboxes where the test looks for them)
    """Pids of a cluster's nodes and the flag that names it; none where the run needs none."""
    with contextlib.ExitStack() as opened:
        if not request.param:
            yield [], []
            return
        cluster, others = opened.enter_context(three_nodes())
        raylets = [node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, *others)]
        yield raylets, [f"--config.rl.rollout.ray={cluster.address}"]


def case(name, size, workers, ray=False):
    marks = [pytest.mark.external, pytest.mark.timeout(SLOW_SECONDS)] if ray else [pytest.mark.slow]
    return pytest.param(Scenario(workers, *size), ray, id=name, marks=marks)


CASES = [
    case("tools in the controller", TOOLS, 0),
    case("tools in workers", TOOLS, 2),
    case("agents in the controller", HARNESS, 0),
    case("agents in workers", HARNESS, 2),
    case("sub-agents in the controller", SWARM, 0),
    case("sub-agents in workers", SWARM, 2),
    case("agents in actors", HARNESS, 3, ray=True),
]


@pytest.mark.parametrize(("scenario", "cluster"), CASES, indirect=["cluster"])
def test_kills_lose_no_complete_group_train_on_none_twice_and_leave_no_sandbox(
    scenario,
    cluster,
    tmp_path,
    orphans,  # noqa: F811
    temporary,  # noqa: F811
    monkeypatch,
):
    scenario.write(tmp_path, monkeypatch)
    nodes, flags = cluster[0], [*scenario.flags, *cluster[1]]
    workdir, kills, run, seen, known, masked = tmp_path / "run 0", [], 0, set(), {}, 0

    def left():
        return left_of(orphans()), groups(seen), list(temporary.glob("k2jax-sandbox-*"))

    while len(kills) < KILLS:
        process, moment = start(tmp_path / "config.py", workdir, *flags), random.choice(MOMENT_NAMES)
        await_moment(moment, process, workdir, scenario.samples)
        for _ in range(random.randrange(4)):
            live, killed = scenario.live(tmp_path), kill_one(below(process.pid, *nodes))
            kills += [(killed, moment, live)] if killed and process.poll() is None else []
            time.sleep(random.random() * 3)
            known |= complete(workdir / FOLDER, scenario.samples)
        seen |= below(process.pid, *nodes)
        live = scenario.live(tmp_path)
        if random.random() < 0.6:
            process.kill()
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode in (0, -9), stderr
        known |= complete(workdir / FOLDER, scenario.samples)
        assert_nothing_is_left(left)
        if process.returncode == 0:  # it has come to its end, and another one begins
            masked += assert_every_prompt_once(workdir, known, scenario.samples)
            scenario.check(workdir)
            run, known = run + 1, {}
            workdir = tmp_path / f"run {run}"
        else:
            kills.append(("controller", moment, live))
    run_to_the_end(tmp_path / "config.py", workdir, *flags)
    masked += assert_every_prompt_once(workdir, known, scenario.samples)
    scenario.check(workdir)
    kinds = dict(Counter(kind for kind, *_ in kills))
    print("killed, in a phase, beside live sub-agents:", kinds, kills, "runs:", run + 1, "masked samples:", masked)


def await_moment(moment, process, workdir, samples):
    """Waits until a phase of a run has come once or twice, and then a little."""
    look = MOMENTS[moment][0] if moment != "group" else (lambda at: len(complete(at / FOLDER, samples)))
    before, events, deadline = (
        look(workdir),
        0 if moment == "start" else random.choice([1, 2]),
        time.monotonic() + SECONDS,
    )
    while events and process.poll() is None and time.monotonic() < deadline:
        now = look(workdir)
        events, before = events - (now != before), now
        time.sleep(0.005)
    time.sleep(random.random() * (10 if moment == "start" else 0.5))
