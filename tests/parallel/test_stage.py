"""What a pipeline stage computes: the leading dense layers keep their activations as those of any other layer."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from k2jax.batch import PackedBatch
from k2jax.losses import NLL
from k2jax.parallel.gradients import make_loss_and_gradients
from k2jax.parallel.layout import make_layout, padded_shape
from k2jax.params import map_specs
from tests.parallel.tiny import config_of

MESH = AbstractMesh((1, 2, 1), ("data", "stage", "expert"))


def traced(**train) -> str:
    """The step's loss and gradients on two stages, as text."""
    config = config_of({"parallel.stage": 2, **{f"train.{key}": value for key, value in train.items()}})
    layout = make_layout(config, MESH)
    weight = lambda spec, placed: jax.ShapeDtypeStruct(padded_shape(spec, placed, MESH), jnp.float32)  # noqa: E731
    params = map_specs(weight, layout.specs, layout.compute)
    shape = (config.train.micro_batches, 4, config.data.sequence_length)
    tokens = [jax.ShapeDtypeStruct(shape, jnp.int32)] * 4
    batch = PackedBatch(*tokens, targets={"weights": jax.ShapeDtypeStruct(shape, jnp.float32)})
    return str(jax.make_jaxpr(make_loss_and_gradients(config, layout, NLL()))(params, batch))


def test_leading_dense_layers_under_stages_keep_what_the_config_says():
    """The name is one of dense layers alone: no other layer makes either mark."""
    stored, offloaded = (traced(remat="selective", **{key: ("dense_gate_up",)}) for key in ("store_fp8", "offload"))
    assert "f8_e4m3fn" in stored and "f8_e4m3fn" not in offloaded
    assert "f32<host>" in offloaded and "<host>" not in stored
