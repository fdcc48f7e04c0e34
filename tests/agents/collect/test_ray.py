"""Workers as actors of a Ray cluster of three nodes on this machine. Needs the extra ``ray``, which tests leave out."""

import pytest

from k2jax.agents.collect.launchers import RayLauncher
from k2jax.errors import UserError
from tests.agents.collect.ray_cluster import three_nodes
from tests.agents.collect.test_deterministic import batch

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
