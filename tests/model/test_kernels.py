"""``config.model.kernels``: the same model through the TPU kernels, run in interpret mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax import runtime
from k2jax.aot.compiling import for_tpu
from k2jax.config import defaults, model_preset, replace_keys, resolve
from k2jax.config.schema import PhaseConfig
from k2jax.errors import UserError
from k2jax.model import forward, head_weight, model_specs, token_logprobs
from k2jax.params import abstract
from k2jax.train.workdir import lock_workdir
from pallas_kernels.mla_attention import MAX_LENGTH
from tests.inference.tiny import GQA, MLA, PLAIN, weights
from tests.refusal import refused

TOKENS = np.random.default_rng(0).integers(0, 61, (2, 24)).astype(np.int32)
EXIT = np.array([[10] * 10 + [20] * 10 + [20, 21, 22, 23], [24] * 24], np.int32)  # two documents and padding; one


def loss_and_stats(params, model):
    hidden, stats = forward(params, jnp.asarray(TOKENS), None, jnp.asarray(EXIT), model)
    parent = jnp.broadcast_to(jnp.arange(TOKENS.shape[1]), TOKENS.shape)
    real = jnp.asarray(np.arange(TOKENS.shape[1]) < EXIT)
    return -jnp.where(real, token_logprobs(hidden, parent, jnp.asarray(TOKENS), head_weight(params)), 0).sum(), stats


EXPERTS = replace_keys(PLAIN, {"layers": 1, "dense_layers": 0})


@pytest.mark.parametrize(
    "model",
    [EXPERTS, *(pytest.param(model, marks=pytest.mark.slow) for model in (PLAIN, GQA))],
    ids=["mla with experts", "mla", "gqa"],
)
def test_loss_gradients_and_statistics_are_those_of_plain_jax(model):
    results = {}
    for kernels in ("xla", "interpret"):
        chosen = replace_keys(model, {"kernels": kernels})
        step = jax.jit(jax.value_and_grad(lambda params, m=chosen: loss_and_stats(params, m), has_aux=True))
        results[kernels] = step(weights(model))
    (loss, stats), grads = results["interpret"]
    (expected_loss, expected_stats), expected_grads = results["xla"]
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(stats.max_logit["text"], expected_stats.max_logit["text"], rtol=1e-5)
    np.testing.assert_array_equal(stats.expert_tokens, expected_stats.expert_tokens)
    for got, expected in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5 * max(np.abs(expected).max(), 1e-6))


def test_a_tpu_gets_all_kernels():
    """The lowered program calls attention's and the experts', forward and backward, by name."""
    model = replace_keys(MLA, {"d_model": 256, "moe.expert_ffn": 128, "kernels": "pallas"})
    traced = jax.jit(jax.grad(lambda p: loss_and_stats(p, model)[0])).trace(abstract(model_specs(model), jnp.bfloat16))
    program = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert program.count("tpu_custom_call") > 4


def test_kernels_without_a_tpu_are_refused_in_one_line():
    nano = model_preset("nano")
    with pytest.raises(UserError, match="needs a TPU"):
        runtime.check_kernels(replace_keys(nano, {"kernels": "pallas"}))
    with pytest.raises(UserError, match="multiple of 256 and an expert_ffn of 128, not 32 and 16; use auto"):
        runtime.check_kernels(replace_keys(MLA, {"kernels": "pallas"}))
    runtime.check_kernels(nano)


def test_an_exchange_that_a_cpu_does_not_have_is_refused_in_one_line():
    config = defaults("pretrain")
    config.parallel.update({"expert": 2, "expert_backend": "ragged"})
    with pytest.raises(UserError, match=r"expert_backend is ragged, .*; use auto$"):
        runtime.check_exchange(resolve(config))
    config.parallel.expert_backend = "a2a"
    runtime.check_exchange(resolve(config))


LONG = (
    "8,388,097 is more than the 8,388,096 that the attention's kernels take: lower it, or set config.model.kernels=xla"
)


def test_rows_that_the_attention_cannot_number_are_refused_before_anything_starts(tmp_path):
    config = replace_keys(resolve(defaults("pretrain")), {"data.sequence_length": MAX_LENGTH + 1})
    with refused(f"^config.data.sequence_length {LONG}$"):
        for_tpu(config)
    assert for_tpu(replace_keys(config, {"data.sequence_length": MAX_LENGTH}))
    runtime.check_lengths(config)  # plain JAX takes any, which auto means on a CPU
    mosaic = replace_keys(config, {"model.kernels": "interpret"})
    with refused("^config.data.sequence_length"), lock_workdir(tmp_path, mosaic):
        pass
    runtime.check_lengths(replace_keys(mosaic, {"model.kernels": "xla"}))
    patches = {"data.sequence_length": 512, "data.images.patches": MAX_LENGTH + 1, "model.vision.layers": 1}
    with refused(f"^config.data.images.patches {LONG}$"):
        runtime.check_lengths(replace_keys(mosaic, patches))
    longer = PhaseConfig(begin=5, overrides=(f"data.sequence_length={MAX_LENGTH + 1}",))
    phased = {"data.sequence_length": 512, "phases": {"short": PhaseConfig(), "long": longer}}
    with refused("^in phase long: config.data.sequence_length"), lock_workdir(tmp_path, replace_keys(mosaic, phased)):
        pass
    assert not list(tmp_path.iterdir())


def test_more_tokens_than_the_kernels_take_are_refused_in_one_line():
    model = replace_keys(MLA, {"d_model": 256, "moe.expert_ffn": 128, "kernels": "interpret"})
    tokens = jax.ShapeDtypeStruct((1024, 8192), jnp.int32)
    with pytest.raises(UserError, match=r"^8,388,608 tokens on a device .*; raise config.train.micro_batches"):
        jax.eval_shape(
            lambda params, tokens: forward(params, tokens, None, None, model), abstract(model_specs(model)), tokens
        )
