"""The rules table: which axes of which weights are sharded, and what is refused."""

from jax.sharding import AbstractMesh, PartitionSpec
import pytest

from k2jax.config import model_preset
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.params import named_specs
from k2jax.sharding import RULES, neighbours, partition_spec

P = PartitionSpec
GOLDEN = {
    "dense/attention/kv_a": P("stage"),
    "dense/attention/kv_b": P("stage", None, "tensor"),
    "dense/attention/kv_norm": P("stage"),
    "dense/attention/o": P("stage", "tensor"),
    "dense/attention/q_a": P("stage"),
    "dense/attention/q_b": P("stage", None, "tensor"),
    "dense/attention/q_norm": P("stage"),
    "dense/attention_norm": P("stage"),
    "dense/ffn/w13": P("stage", None, None, "tensor"),
    "dense/ffn/w2": P("stage", "tensor"),
    "dense/ffn_norm": P("stage"),
    "embed": P("tensor"),
    "final_norm": P(),
    "head": P("tensor"),
    "moe/attention/kv_a": P("stage"),
    "moe/attention/kv_b": P("stage", None, "tensor"),
    "moe/attention/kv_norm": P("stage"),
    "moe/attention/o": P("stage", "tensor"),
    "moe/attention/q_a": P("stage"),
    "moe/attention/q_b": P("stage", None, "tensor"),
    "moe/attention/q_norm": P("stage"),
    "moe/attention_norm": P("stage"),
    "moe/experts/w13": P("stage", "expert", None, None, "tensor"),
    "moe/experts/w2": P("stage", "expert", "tensor"),
    "moe/ffn_norm": P("stage"),
    "moe/router": P("stage"),
    "moe/router_bias": P("stage"),
    "moe/shared/w13": P("stage", None, None, "tensor"),
    "moe/shared/w2": P("stage", "tensor"),
}
GOLDEN_GQA = {
    "dense/attention/k": P("stage", None, "tensor"),
    "dense/attention/k_bias": P("stage", "tensor"),
    "dense/attention/o": P("stage", "tensor"),
    "dense/attention/q": P("stage", None, "tensor"),
    "dense/attention/q_bias": P("stage", "tensor"),
    "dense/attention/v": P("stage", None, "tensor"),
    "dense/attention/v_bias": P("stage", "tensor"),
    "dense/attention_norm": P("stage"),
    "dense/ffn/w13": P("stage", None, None, "tensor"),
    "dense/ffn/w2": P("stage", "tensor"),
    "dense/ffn_norm": P("stage"),
    "embed": P("tensor"),
    "final_norm": P(),
}


def mesh(**axes):
    return AbstractMesh(tuple(axes.values()), tuple(axes))


def placed(preset, mesh):
    return {name: partition_spec(name, spec, mesh) for name, spec in named_specs(model_specs(model_preset(preset)))}


@pytest.mark.parametrize(("preset", "golden"), [("deepseek_v3", GOLDEN), ("qwen2.5_0.5b", GOLDEN_GQA)])
def test_every_weight_of_a_preset(preset, golden):
    stages = 1  # a leading dense layer or three do not divide over more
    assert placed(preset, mesh(data=2, stage=stages, expert=16, tensor=2)) == golden


def test_a_mesh_without_an_axis_leaves_it_whole():
    k2 = placed("k2", mesh(data=4, expert=16))
    assert k2["moe/experts/w13"] == P(None, "expert") and k2["embed"] == P()
    assert {name for name, spec in k2.items() if spec != P()} == {"moe/experts/w13", "moe/experts/w2"}


def test_a_size_that_does_not_divide_names_those_that_would():
    with pytest.raises(UserError, match=r"moe/experts/w13: 384 experts do not divide over 10 .*; 8 or 12 would"):
        placed("k2", mesh(expert=10))
    with pytest.raises(UserError, match=r"60 layers do not divide over 16 .*; 15 or 20 would"):
        spec = dict(named_specs(model_specs(model_preset("k2"))))["moe/ffn_norm"]
        partition_spec("moe/ffn_norm", spec, mesh(stage=16))


def test_two_axes_of_a_weight_on_one_mesh_axis_are_refused():
    specs = dict(named_specs(model_specs(model_preset("k2"))))
    with pytest.raises(UserError, match="experts and ffn would both be sharded over the mesh axis expert"):
        partition_spec("moe/experts/w2", specs["moe/experts/w2"], mesh(expert=2), RULES | {"ffn": "expert"})


def test_neighbours_are_divisors():
    assert neighbours(384, 7) == [6, 8] and neighbours(7, 8) == [7] and neighbours(60, 64) == [60]
