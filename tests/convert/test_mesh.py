"""Weights read straight onto a mesh: the same numbers, and nothing read that no device of the process holds."""

import numpy as np
import pytest
import transformers

from k2jax.convert import mapping
from k2jax.convert.loading import _gather
from k2jax.convert.source import open_folder
from tests.convert.folders import MLA
from tests.emulated import run_on

CHECK = """
import sys
import jax
import numpy as np
import k2jax
from jax.sharding import PartitionSpec as P
from k2jax.convert.importing import import_folder
folder, workdir = sys.argv[1:]
mesh = jax.make_mesh((2, 2), ("expert", "tensor"))
import_folder(folder, workdir)
_, whole = k2jax.from_pretrained(folder)
for path in (folder, workdir):
    _, params = k2jax.from_pretrained(path, mesh=mesh)
    assert params["moe"]["experts"]["w13"].sharding.spec == P(None, "expert", None, None, "tensor")
    shards = params["moe"]["experts"]["w13"].addressable_shards
    assert len(shards) == 4 and all(shard.data.shape == (2, 4, 48, 2, 16) for shard in shards)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny deepseek_v3 folder: 8 experts, 2 expert layers, a vocabulary that divides."""
    path = tmp_path_factory.mktemp("hf")
    config = transformers.DeepseekV3Config(**MLA | {"vocab_size": 96}, pad_token_id=None)
    transformers.DeepseekV3ForCausalLM(config).save_pretrained(path)
    return path


def test_a_mesh_gets_the_numbers_that_one_device_gets(folder, tmp_path):
    run_on(4, "-c", CHECK, str(folder), str(tmp_path / "run"))


@pytest.mark.parametrize("rows", [32, 7], ids=["a block a tensor", "blocks that divide nothing"])
def test_a_region_is_read_from_the_tensors_it_lies_in(folder, monkeypatch, rows):
    """A rank with experts 2 and 3 of 8 reads theirs alone; the region is cut out of every axis."""
    source = open_folder(folder)
    spec, read = source.specs["moe/experts/w13"], []
    whole = _gather(source, "w13", spec, tuple(slice(0, size) for size in spec.shape))
    monkeypatch.setattr(mapping, "BLOCK_ELEMENTS", 48 * rows)
    for name, tensor in source.tensors.items():
        source.tensors[name] = _Recorded(name, tensor, read)
    region = (slice(0, 2), slice(2, 4), slice(8, 40), slice(1, 2), slice(5, 30))
    np.testing.assert_array_equal(_gather(source, "w13", spec, region), whole[region])
    assert sorted(set(read)) == [f"model.layers.{i}.mlp.experts.{e}.up_proj.weight" for i in (1, 2) for e in (2, 3)]


class _Recorded:
    def __init__(self, name, tensor, read):
        self._name, self._tensor, self._read = name, tensor, read

    def __getattr__(self, attribute):
        return getattr(self._tensor, attribute)

    def read(self, start, stop):
        self._read.append(self._name)
        return self._tensor.read(start, stop)
