"""Weights read straight onto a mesh: the same numbers, and nothing read that no device of the process holds."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

import k2jax
from k2jax.checkpoint import Checkpoints, run_config
from k2jax.checkpoint.streaming import ParamsReader
from k2jax.config import replace_keys, to_json
from k2jax.config.schema import Config
from k2jax.convert import mapping
from k2jax.convert.exporting import export_checkpoint
from k2jax.convert.hf_config import _parse
from k2jax.convert.loading import _gather
from k2jax.convert.source import open_folder
from k2jax.model import model_specs
from k2jax.params import initialize
from k2jax.train.init_from import pretrained_params
from k2jax.train.program import Program
from tests.convert.folders import MLA
from tests.refusal import refused

HF = MLA | {"model_type": "deepseek_v3", "vocab_size": 96, "rms_norm_eps": 1e-6, "rope_theta": 1e4}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run of a tiny model: 8 experts, 2 expert layers, a vocabulary that divides."""
    path = tmp_path_factory.mktemp("run")
    config = Config(model=_parse(HF).model)
    (path / "config.json").write_text(to_json(config))
    checkpoints = Checkpoints(path)
    params = initialize(model_specs(config.model), jax.random.key(0), 0.02)
    checkpoints.save(0, params, {"count": jnp.int32(0)}, {})
    checkpoints.close()
    return path


@pytest.fixture(scope="module")
def whole(workdir):
    """The weights of the run on one device."""
    return k2jax.from_pretrained(workdir)[1]


@pytest.fixture(scope="module")
def folder(workdir, tmp_path_factory):
    """The run as a Hugging Face folder."""
    path = tmp_path_factory.mktemp("hf")
    export_checkpoint(workdir, path)
    return path


def assert_equal_trees(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.devices(4)
@pytest.mark.parametrize("source", [pytest.param("folder", marks=pytest.mark.slow), "workdir"])
def test_a_mesh_gets_the_numbers_that_one_device_gets(request, whole, source):
    mesh = jax.make_mesh((2, 2), ("expert", "tensor"))
    _, params = k2jax.from_pretrained(request.getfixturevalue(source), mesh=mesh)
    w13 = params["moe"]["experts"]["w13"]
    assert w13.sharding.spec == PartitionSpec(None, "expert", None, None, "tensor")
    assert [shard.data.shape for shard in w13.addressable_shards] == [(2, 4, 48, 2, 16)] * 4
    assert_equal_trees(params, whole)


@pytest.fixture
def reads(monkeypatch):
    """(name, number of elements) of every read from a checkpoint."""
    read, sizes = ParamsReader.read, []

    def recorded(reader, name, index):
        sizes.append((name, np.prod([part.stop - part.start for part in index])))
        return read(reader, name, index)

    monkeypatch.setattr(ParamsReader, "read", recorded)
    return sizes


def pipeline(workdir, **changes):
    """The run's config on 2 x 2 devices, data and stages."""
    return replace_keys(run_config(workdir), {"parallel.data": 2, "parallel.stage": 2} | changes)


@pytest.mark.devices(4)
def test_a_pipeline_starts_from_the_weights_of_one_device(workdir, whole, reads):
    """Each device reads its part alone."""
    reads.clear()
    program = Program(pipeline(workdir))
    params, _ = pretrained_params(workdir, program.layout)
    placed = jax.tree.map(lambda x, to: x.sharding.is_equivalent_to(to, x.ndim), params, program.shardings.params)
    assert all(jax.tree.leaves(placed))
    assert_equal_trees(program.checkpoint_layout().logical_params(params), whole)
    size = params["moe"]["experts"]["w13"].size
    assert [count for name, count in reads if name == "moe/experts/w13"] == [size // 4] * 4


@pytest.mark.devices(4)
def test_weights_of_another_model_are_refused_before_any_is_read(workdir, reads):
    line = r"is another model: dense/attention/kv_a is \(1, 48, 24\) there, \(1, 44, 24\) in the config"
    with refused(line):
        pretrained_params(workdir, Program(pipeline(workdir, **{"model.d_model": 44})).layout)
    assert not reads


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
