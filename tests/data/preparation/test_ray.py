"""A build on a Ray cluster of three nodes on this machine. Needs the extra ``ray``, which tests leave out."""

import functools

import pytest

from k2jax.data.build_shards import prepare_shards
from k2jax.data.preparation import cutting
from k2jax.text import byte_tokenizer
from tests.agents.collect.ray_cluster import three_nodes
from tests.data.preparation import odd_corpus
from tests.data.preparation.test_build import IN_ONE_PASS

pytestmark = [pytest.mark.slow, pytest.mark.external]


class LosesANode:
    """A function whose tenth call in order is followed by the loss of a node."""

    def __init__(self, pool, lose):
        self._pool, self._lose, self._count = pool, lose, 0

    def run(self, function, items):
        for result in self._pool.run(functools.partial(slowly, function), items):
            self._count += 1
            if self._count == 10:
                self._lose()
            yield result


def slowly(function, item):
    import time

    time.sleep(0.05)
    return function(item)


def test_three_nodes_of_which_one_is_lost_give_the_bytes_of_one_pass(tmp_path, monkeypatch):
    from k2jax.data.preparation.ray_pool import RayPool

    monkeypatch.setattr(cutting, "TASK_BYTES", 700)
    folder = tmp_path / "corpus"
    config = odd_corpus.config(tmp_path / "cache", odd_corpus.sources(folder))
    with three_nodes() as (cluster, nodes):
        pool = RayPool(cluster.address)
        losing = LosesANode(pool, lambda: cluster.remove_node(nodes[0], allow_graceful=False))
        shards = prepare_shards("jsonl", config, byte_tokenizer(), pool=losing)
        assert odd_corpus.fingerprint(shards, folder) == IN_ONE_PASS["jsonl"]
        shards = prepare_shards("parquet", config, byte_tokenizer(), pool=pool)
        assert odd_corpus.fingerprint(shards, folder) == IN_ONE_PASS["parquet"]
        pool.close()
