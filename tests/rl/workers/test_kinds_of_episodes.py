"""Sub-episodes and tools in sandboxes under the sampler that does not wait, here and in a worker process."""

import pytest

from k2jax.config import resolve
from k2jax.report.metrics import read_metrics
from k2jax.rl import episodes
from k2jax.rl.loop import train
from k2jax.trajectory import verify
from k2jax.trajectory.steps import SPAWNED
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.critic.lenient import STOPS
from tests.rl.test_sub_episodes import asking  # noqa: F401
from tests.rl.test_tools_loop import small
from tests.rl.tiny import register, tiny_config

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("workers", [0, 1])]
STEPS = 2


def trained(config, workdir, workers):
    """The trajectories of a run of two iterations, with an evaluation after each."""
    config.rl.rollout.update({"sampler": "workers", "workers": workers, "prompts": 2, "samples": 2, "concurrency": 6})
    config.rl.update({"updates": 1, "eval_prompts": 1, "eval_samples": 1})
    config.train.update({"steps": STEPS, "batch_size": 2})
    config.eval.every = 1
    assert train(resolve(config), workdir) == 0
    assert [each["step"] for each in read_metrics(workdir) if "eval/greedy" in each] == [0, 1, 2]
    store = TrajectoryStore(workdir / "trajectories")
    stored = [trajectory for step in range(1, 1 + STEPS) for trajectory in store.read(step)]
    assert len(stored) == STEPS * 4
    for trajectory in stored:
        assert not verify(trajectory, 258) and trajectory.reward is not None, trajectory.error
    return stored


def test_sub_episodes_end_with_verdicts(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(episodes, "Sampling", STOPS)  # an untrained policy hardly ever ends a turn
    register()
    config = tiny_config()
    config.rl.tasks.low.update({"environment": "asking", "max_tokens": 6})
    stored = trained(config, tmp_path / "run", workers)
    links = [link for each in stored for link in each.metadata.get(SPAWNED, {}).values()]
    assert links and all(link["reward"] is not None for link in links)
    for trajectory in stored:
        assert len(trajectory.metadata.get(SPAWNED, ())) == (2 if trajectory.status == "finished" else 0)


def test_tools_work_in_sandboxes_and_what_is_left_is_judged(tmp_path, workers):
    stored = trained(small("terminal"), tmp_path / "run", workers)
    assert all(trajectory.nodes[0].message["role"] == "user" for trajectory in stored)
    assert all("outcome" in trajectory.metadata for trajectory in stored)
