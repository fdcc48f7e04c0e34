"""Workers as actors of a Ray cluster of three nodes on this machine. Needs the extra ``ray``, which tests leave out."""

import json

import pytest

from k2jax.agents.collect.launchers import RayLauncher
from k2jax.errors import UserError
from k2jax.trajectory.store import read_trajectories
from tests.agents.collect.ray_cluster import three_nodes
from tests.agents.collect.test_deterministic import batch
from tests.command import run_command
from tests.serve import folder

pytestmark = pytest.mark.external


@pytest.fixture(scope="module")
def cluster():
    with three_nodes() as (cluster, _):
        import ray

        yield ray, cluster.address
        ray.shutdown()


def test_where_there_is_no_cluster_that_is_one_line():
    pytest.importorskip("ray")
    for address in ("127.0.0.1:1", "auto"):
        with pytest.raises(UserError, match="no Ray cluster"):
            RayLauncher(address)


def test_three_nodes_give_the_batch_of_this_machine_bit_for_bit_though_an_actor_is_killed(tmp_path, cluster):
    ray, address = cluster
    here = batch(tmp_path / "here")
    launcher = RayLauncher(address)
    there = batch(tmp_path / "there", workers=3, engines=2, kill=9, launcher=launcher)
    assert there == here
    assert len([node for node in ray.nodes() if node["Alive"]]) == 3, "of one processor each, as an actor needs"


CONFIG = """
from k2jax.config import defaults, task

def get_config():
    config = defaults("rl", model="micro")
    config.data.chat_format = "plain"
    config.rl.tasks = {"sums": task(dataset="characters", options=("kinds=add2", "count=30"), max_tokens=8)}
    config.rl.rollout.update({"slots": 4, "max_length": 64})
    return config
"""


def test_the_command_s_actors_reach_an_engine_of_a_checkpoint_with_its_key_alone(tmp_path, cluster):
    """The episodes are those of this machine, and the key is in no file that others may read, and in no argument."""
    _, address = cluster
    (tmp_path / "sums.py").write_text(CONFIG)
    words = [
        f"--config={tmp_path / 'sums.py'}",
        f"--checkpoint={folder.write(tmp_path / 'tiny')}",
        "--tasks=6",
        "--deterministic",
        "--workers=2",
    ]
    stored = []
    for name, flags in (("here", []), ("there", [f"--ray={address}"])):
        ended = run_command("k2jax.rollout", *words, f"--workdir={tmp_path / name}", *flags)
        assert ended.returncode == 0, ended.stderr
        stored.append(
            [each.nodes[-1].tokens.tolist() for each in read_trajectories(tmp_path / name / "trajectories/0.k2t")]
        )
    assert stored[0] == stored[1] and len(stored[0]) == 6
    job = tmp_path / "there" / "job.json"
    assert job.stat().st_mode & 0o077 == 0 and json.loads(job.read_text())["options"]["engines"][0].startswith("tcp://")
