"""What a pipeline stage computes: every layer keeps what the config says, as it does without stages."""

import functools

import jax
from jax.extend.core import ClosedJaxpr
import jax.numpy as jnp
from jax.sharding import AbstractMesh
import pytest

from k2jax.batch import PackedBatch
from k2jax.config.activations import ACTIVATIONS, BY_NAME, LISTS, POLICIES, present
from k2jax.losses import NLL
from k2jax.parallel.gradients import make_loss_and_gradients
from k2jax.parallel.layout import make_layout, padded_shape
from k2jax.params import map_specs
from tests.jaxpr import equations
from tests.model.saved import kept_by_loops
from tests.parallel.tiny import config_of

GQA = {"model.attention": "gqa", "model.gqa.kv_heads": 2, "model.gqa.head_dim": 8}
MODELS = {
    "mla": {},
    "gqa": {**GQA, "model.dense_layers": 4, "model.layers": 4},
}
each_stages = pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.slow), 2])
each_model = pytest.mark.parametrize("model", MODELS)


def names_of(model: str) -> dict[str, set[str]]:
    """The names that the layers of each group make."""
    config = config_of(MODELS[model]).model
    groups = ("dense",) * (config.dense_layers > 0) + ("moe",) * (config.dense_layers < config.layers)
    return {group: {activation.name for activation in present(config, group)} for group in groups}


@functools.cache
def traced(stages: int, model: str, virtual_stages: int = 1, **train: str | tuple[str, ...]) -> ClosedJaxpr:
    """A step's loss and gradients of one micro-batch."""
    mesh = AbstractMesh((1, stages, 1), ("data", "stage", "expert"))
    keys = {"parallel.stage": stages, "parallel.virtual_stages": virtual_stages, "train.micro_batches": 1}
    config = config_of({**MODELS[model], **keys, **{f"train.{key}": train[key] for key in train}})
    layout = make_layout(config, mesh)
    weight = lambda spec, placed: jax.ShapeDtypeStruct(padded_shape(spec, placed, mesh), jnp.float32)  # noqa: E731
    params = map_specs(weight, layout.specs, layout.compute)
    shape = (1, 4, config.data.sequence_length)
    tokens = [jax.ShapeDtypeStruct(shape, jnp.int32)] * 4
    batch = PackedBatch(*tokens, targets={"weights": jax.ShapeDtypeStruct(shape, jnp.float32)})
    return jax.make_jaxpr(make_loss_and_gradients(config, layout, NLL()))(params, batch)


def taken_by(key: str) -> set[str]:
    """All names that a list of the config takes."""
    fp8 = {activation.name for activation in ACTIVATIONS if activation.fp8}
    return {"store_fp8": fp8, "recompute": set(BY_NAME) - {"layer_input"}}.get(key, set(BY_NAME))


def test_the_models_have_every_name():
    assert set().union(*(names for model in MODELS for names in names_of(model).values())) == set(BY_NAME)


@each_stages
@each_model
@pytest.mark.parametrize("policy", [policy for policy, names in POLICIES.items() if names])
def test_a_policy_keeps_its_names(policy, model, stages):
    groups = names_of(model)
    kept = kept_by_loops(traced(stages, model, remat=policy).jaxpr, groups)
    assert {group: {part.name for part in kept[group]} for group in groups} == {
        group: POLICIES[policy] & groups[group] for group in groups
    }


@each_stages
def test_the_policy_without_names_recomputes_nothing(stages):
    assert not any(eqn.primitive.name == "remat2" for eqn in equations(traced(stages, "mla", remat="none").jaxpr))


@each_stages
@each_model
@pytest.mark.parametrize("key", LISTS)
def test_every_name_of_a_list_has_its_effect(key, model, stages):
    """In the leading dense layers and in the layers with experts; ``tests/model/test_remat.py`` turns single names."""
    groups, policy = names_of(model), "full" if key == "keep" else "selective"
    listed = taken_by(key) & set().union(*groups.values())
    kept = kept_by_loops(traced(stages, model, remat=policy, **{key: tuple(sorted(listed))}).jaxpr, groups)
    for group, made in groups.items():
        names = POLICIES[policy] - listed if key == "recompute" else POLICIES[policy] | listed
        assert {part.name for part in kept[group]} == names & made
        stored = {part.name for part in kept[group] if part.dtype == "float8_e4m3fn"}
        assert stored == (listed & made if key == "store_fp8" else set())
        assert {part.name for part in kept[group] if part.on_host} == (listed & made if key == "offload" else set())
