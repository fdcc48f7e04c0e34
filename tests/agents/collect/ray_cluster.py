"""A Ray cluster of three nodes on this machine, each with one processor, which is room for one actor."""

import contextlib

import pytest


@contextlib.contextmanager
def three_nodes():
    """The cluster, and its nodes behind the first."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        yield cluster, [cluster.add_node(**node) for _ in range(2)]
    finally:
        cluster.shutdown()
