"""Activation memory of programs compiled for a TPU: what a layer adds to the temporaries is what the table says."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import pytest

from k2jax.aot import topology
from k2jax.config import model_preset, replace_keys
from k2jax.config.activations import ACTIVATIONS
from k2jax.config.schema import Config, TrainConfig
from k2jax.model import forward, model_specs
from k2jax.model.remat import Remat, activation_bytes
from k2jax.params import abstract
from tests.aot.programs import prepare

LENGTH = 512
FP8 = tuple(a.name for a in ACTIVATIONS if a.fp8)
# Widths that a TPU does not pad.
MODEL = replace_keys(
    model_preset("nano"),
    {
        "vocab": 512,
        "moe.experts": 8,
        "moe.active_experts": 4,
        "moe.expert_ffn": 512,
        "mla.v_dim": 128,
        "kernels": "pallas",
    },
)
# Rows and two depths at which what all layers keep, not a layer's own work nor copies of weights, decides the peak.
SIZES = {"dense": (16, (8, 24)), "moe": (4, (16, 48))}


@pytest.fixture(autouse=True)
def _ahead_of_time(monkeypatch):
    prepare(monkeypatch)


def temporaries(model, train, rows):
    """Bytes that the gradient's program for one chip of v5e needs beside weights and gradients."""
    sharding = NamedSharding(Mesh(np.array(topology.devices("v5e:2x2")[:1]), ("data",)), PartitionSpec())
    params = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), abstract(model_specs(model), jnp.bfloat16)
    )
    tokens = jax.ShapeDtypeStruct((rows, LENGTH), jnp.int32, sharding=sharding)

    def loss(params, tokens):
        return forward(params, tokens, None, None, model, remat=Remat.from_config(train))[0].astype(jnp.float32).sum()

    return jax.jit(jax.grad(loss)).lower(params, tokens).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("group", ["dense", "moe"])
@pytest.mark.parametrize("store_fp8", [(), FP8], ids=["exact", "fp8"])
def test_a_layer_adds_what_the_table_says(store_fp8, group):
    train, (rows, depths) = TrainConfig(remat="selective", store_fp8=store_fp8), SIZES[group]
    few, many = (
        replace_keys(MODEL, {"layers": layers, "dense_layers": layers if group == "dense" else 0}) for layers in depths
    )
    slope = (temporaries(many, train, rows) - temporaries(few, train, rows)) / (depths[1] - depths[0])
    table = sum(activation_bytes(Config(model=few, train=train), rows * LENGTH, group).values())
    print(f"{group} {store_fp8}: {slope / 2**20:.2f} MiB a layer, the table {table / 2**20:.2f}")
    np.testing.assert_allclose(slope, table, rtol=0.05)
