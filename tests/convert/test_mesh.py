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
INIT_FROM = """
import dataclasses
from k2jax.checkpoint import run_config
from k2jax.checkpoint.streaming import ParamsReader
from k2jax.errors import UserError
from k2jax.train.init_from import pretrained_params
from k2jax.train.program import Program

read, sizes = ParamsReader.read, []
def recorded(reader, name, index):
    sizes.append((name, np.prod([at.stop - at.start for at in index])))
    return read(reader, name, index)
ParamsReader.read = recorded

config = run_config(workdir)
config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, data=2, stage=2))
other = dataclasses.replace(config, model=dataclasses.replace(config.model, d_model=44))
try:
    pretrained_params(workdir, Program(other).layout)
    raise AssertionError("another model was taken")
except UserError as error:
    assert "is another model: dense/attention/kv_a is (1, 48, 24) there, (1, 44, 24) in the config" in str(error), error
assert not sizes

program = Program(config)
params, _ = pretrained_params(workdir, program.layout)
placed = jax.tree.map(lambda x, wanted: x.sharding.is_equivalent_to(wanted, x.ndim), params, program.shardings.params)
assert all(jax.tree.leaves(placed))
logical = program.saved_form().params_from_rest(params)
for a, b in zip(jax.tree.leaves(logical), jax.tree.leaves(whole), strict=True):
    np.testing.assert_array_equal(a, b)
w13 = params["moe"]["experts"]["w13"].size
assert [size for name, size in sizes if name == "moe/experts/w13"] == [w13 // 4] * 4  # a part for each device
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny deepseek_v3 folder: 8 experts, 2 expert layers, a vocabulary that divides."""
    path = tmp_path_factory.mktemp("hf")
    config = transformers.DeepseekV3Config(**MLA | {"vocab_size": 96}, pad_token_id=None)
    transformers.DeepseekV3ForCausalLM(config).save_pretrained(path)
    return path


def test_a_mesh_gets_the_numbers_that_one_device_gets(folder, tmp_path):
    """At inference, and in a pipeline that starts from them."""
    run_on(4, "-c", CHECK + INIT_FROM, str(folder), str(tmp_path / "run"))


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
