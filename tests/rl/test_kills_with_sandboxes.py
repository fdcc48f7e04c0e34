"""A run in sandboxes that is killed at random moments is the run that nobody killed, and no kill leaves a sandbox.

``K2JAX_TEST_KILLS=20 python -m pytest -m slow tests/rl/test_kills_with_sandboxes.py`` kills more often.
"""

import ctypes
import os
from pathlib import Path
import random
import tempfile
import time

import pytest

from k2jax.agents.sandbox import cgroup
from k2jax.checkpoint import committed_steps
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.sandbox.backends import processes_below
from tests.rl import sandboxed
from tests.rl.runs import assert_equal_runs, run_to_the_end
from tests.rl.test_kills import MOMENTS, killed_in

KILLS = int(os.environ.get("K2JAX_TEST_KILLS", "5"))
PATIENCE = 10.0  # seconds in which what a run has started has to end after it
FLAGS = ["--config.train.steps=6", "--config.rl.eval_prompts=2", "--config.rl.keep_trajectories=100"]
SUBREAPER = 36

pytestmark = pytest.mark.slow


@pytest.fixture
def orphans():
    """Processes that the test's own processes leave behind become its children, so that none can hide."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = processes_below(os.getpid())
    assert prctl(SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
    yield lambda: reaped(processes_below(os.getpid()) - before)
    prctl(SUBREAPER, *map(ctypes.c_ulong, (0, 0, 0, 0)))


@pytest.fixture
def temporary(monkeypatch):
    """The folder of the runs' temporary files, which is theirs alone and which the users of sandboxes can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def reaped(pids):
    """Those that have not ended yet; the ones that have are waited for."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # a grandchild
            continue
    return pids


def groups(pids):
    """Folders of the control groups of spawners among some processes, each named by its pid."""
    return [path for tree in cgroup.find().values() for pid in pids for path in tree.folder.glob(f"k2jax-{pid}-*")]


def names(pids):
    """Names of programs of processes."""
    found = []
    for pid in pids:
        try:
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
        except OSError:
            continue
    return found


def assert_nothing_is_left(look):
    """``look`` returns collections, all of which become empty in time."""
    end = time.monotonic() + PATIENCE
    while any(left := look()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(left), left


def test_kills_leave_no_trace_on_a_run_with_sandboxes_and_no_sandbox(tmp_path, orphans, temporary):
    (tmp_path / "config.py").write_text(sandboxed.CONFIG_FILE)
    run_to_the_end(tmp_path / "config.py", tmp_path / "expected", *FLAGS)
    assert_worked_in_sandboxes(tmp_path / "expected")
    kills, run, seen = [], 0, set()

    def folders():
        return list(temporary.glob("k2jax-sandbox-*"))

    def watch(process):
        started = processes_below(process.pid)
        kills[-1] += (names(started).count("bwrap"), len(groups(started)), len(folders()))
        seen.update(started)

    while len(kills) < KILLS:
        moment = random.choice(list(MOMENTS)) if kills else "rollout"
        kills.append((moment, max(committed_steps(tmp_path / f"run {run}"), default=0)))
        was_killed = killed_in(moment, tmp_path / "config.py", tmp_path / f"run {run}", FLAGS, watch)
        assert_nothing_is_left(lambda: (names(orphans()), groups(seen), folders()))
        if not was_killed:  # it has come to its end, and another one begins
            kills.pop()
            assert_equal_runs(tmp_path / f"run {run}", tmp_path / "expected")
            run += 1
    print("killed in a phase, after a checkpoint, with processes of sandboxes, control groups and folders:", kills)
    assert any(sandboxes for _, _, sandboxes, *_ in kills) and any(places for *_, places in kills)
    run_to_the_end(tmp_path / "config.py", tmp_path / f"run {run}", *FLAGS)
    assert_equal_runs(tmp_path / f"run {run}", tmp_path / "expected")


def assert_worked_in_sandboxes(workdir):
    """Episodes of several turns, in which the results of cells depend on those before; rewards of both kinds."""
    store = TrajectoryStore(workdir / "trajectories")
    episodes = [episode for step in store.steps() for episode in store.read(step)]
    for episode in episodes:
        assert not episode.error
        shown = [int(node.message["content"]) for node in episode.nodes if node.message["role"] == "tool"]
        said = [node.message["content"] for node in episode.nodes if node.turn >= 0]
        totals = [sum(sum(text.encode()) for text in said[: 1 + place]) for place in range(len(said))]
        assert shown == totals[: len(shown)] and len(shown) + 1 == len(said)
        finished = episode.status == "finished"  # others were cut in an answer
        assert len(said) == sandboxed.TURNS or not finished
        assert episode.reward.value == (sum(totals) % 2 if finished else 0)
    assert {episode.reward.value for episode in episodes} == {0.0, 1.0}
    sampled = [[node for node in episode.nodes if node.turn >= 0] for episode in episodes]
    assert any(len({version for node in nodes for version in node.versions.tolist()}) > 1 for nodes in sampled)
