"""Grouped-query attention against float64 NumPy, under the exit mask, and in a dense decoder that learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.config import GQAConfig, ModelConfig, MoEConfig, defaults, replace_keys, resolve
from k2jax.model import forward, model_specs
from k2jax.model.gqa import gqa
from k2jax.model.rope import rotary_table
from k2jax.params import map_specs
from k2jax.train.program import Program
from k2jax.train.record import Recorder
from pallas_kernels.mla_attention.xla import UNROLL_UP_TO
from tests.model.gqa_reference import gqa_layer

TINY = ModelConfig(
    layers=2, dense_layers=2, d_model=24, heads=4, attention="gqa", dense_ffn=32, vocab=50, rope_theta=100.0,
    gqa=GQAConfig(kv_heads=2, head_dim=8), moe=MoEConfig(expert_ffn=16, experts=6, active_experts=2),
)  # fmt: skip
VARIANTS = {
    "llama": {},
    "bias and norm, wide heads": {"gqa.qkv_bias": True, "gqa.qk_norm": True, "gqa.head_dim": 10},
    "one kv head": {"gqa.kv_heads": 1},
    "experts": {"dense_layers": 1},
}


def random_params(config, seed=0):
    """Weights, biases and norms that all count."""
    rng = np.random.default_rng(seed)

    def one(spec):
        noise = rng.standard_normal(spec.shape)
        return jnp.asarray(1 + 0.2 * noise if spec.init == "ones" else 0.3 * noise, jnp.float32)

    return map_specs(one, model_specs(config))


@pytest.fixture(scope="module", params=VARIANTS)
def model(request):
    config = replace_keys(TINY, VARIANTS[request.param])
    return config, random_params(config)


def test_a_layer_agrees_with_float64(model):
    config, params = model
    attention = jax.tree.map(lambda w: w[0], params["dense"]["attention"])
    x = np.random.default_rng(1).standard_normal((2, 9, config.d_model)).astype(np.float32)
    rotary = rotary_table(jnp.broadcast_to(jnp.arange(9), (2, 9)), config)
    out, max_logit = jax.jit(gqa, static_argnums=4)(attention, jnp.asarray(x), rotary, None, config)
    expected_out, expected_logit = gqa_layer(attention, x, config)
    np.testing.assert_allclose(out, expected_out, atol=2e-5 * np.abs(expected_out).max())
    np.testing.assert_allclose(max_logit, expected_logit, rtol=2e-5)
    assert max_logit.dtype == jnp.float32 and len(set(np.asarray(max_logit).tolist())) == config.heads


@functools.partial(jax.jit, static_argnums=4)
def _forward(params, tokens, positions, exit, config):
    return forward(params, tokens, positions, exit, config)


def run(params, row, config):
    batch = stack_rows([row])
    return _forward(params, jnp.asarray(batch.tokens), batch.positions, batch.exit, config)


def test_packed_documents_equal_separate_runs(model):
    config, params = model
    rng = np.random.default_rng(0)
    docs = [rng.integers(0, config.vocab, n) for n in (9, 6, 4)]
    packed, stats = run(params, pack_row(docs, 24), config)
    alone = [run(params, pack_row([doc], 24), config) for doc in docs]
    starts = np.cumsum([0, *map(len, docs)])
    for start, doc, (hidden, _) in zip(starts, docs, alone, strict=False):
        np.testing.assert_allclose(packed[0, start : start + len(doc)], hidden[0, : len(doc)], atol=5e-5)
    expected = np.max([s.max_logit["text"] for _, s in alone], axis=0)
    np.testing.assert_allclose(stats.max_logit["text"], expected, rtol=1e-4)
    assert stats.max_logit["text"].shape == (config.layers, config.heads)
    assert stats.expert_tokens.shape == (config.layers - config.dense_layers, config.moe.experts)


@pytest.mark.slow
def test_long_sequences_have_the_gradients_of_their_documents():
    """Beyond ``xla.UNROLL_UP_TO`` tokens attention loops over tiles."""
    config = replace_keys(TINY, {"layers": 1, "dense_layers": 1})
    params, cut, length = random_params(config), 600, UNROLL_UP_TO + 60
    rng = np.random.default_rng(0)
    row = pack_row([rng.integers(0, config.vocab, n) for n in (cut, length - cut)], length)
    probe = jnp.asarray(rng.standard_normal((1, length, config.d_model)), jnp.float32)

    def loss(params, start, stop):
        part = slice(start, stop)
        tokens, positions = (jnp.asarray(x)[None, part] for x in (row.tokens, row.positions))
        exit = jnp.asarray(row.exit)[None, part] - start
        return (forward(params, tokens, positions, exit, config)[0] * probe[:, part]).sum()

    whole, first, second = (
        jax.jit(jax.grad(loss), static_argnums=(1, 2))(params, *part) for part in ((0, length), (0, cut), (cut, length))
    )
    for a, b, c in zip(*map(jax.tree.leaves, (whole, first, second)), strict=True):
        np.testing.assert_allclose(a, b + c, atol=2e-5 * np.abs(a).max())


def test_bfloat16_stays_in_bfloat16(model):
    config, params = model
    half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params["dense"])
    x = jnp.ones((1, 5, config.d_model), jnp.bfloat16)
    attention = jax.tree.map(lambda w: w[0], half["attention"])
    rotary = rotary_table(jnp.arange(5)[None], config)
    out, max_logit = jax.eval_shape(functools.partial(gqa, config=config), attention, x, rotary, None)
    assert out.dtype == jnp.bfloat16 and max_logit.dtype == jnp.float32


def test_a_dense_decoder_learns_with_muonclip():
    """The real step: without expert layers, with clipped heads, and with a record of it."""
    config = defaults("pretrain")
    config.data.sequence_length = 32
    config.train.update({"steps": 12, "batch_size": 4, "micro_batches": 2})
    config.optimizer.learning_rate = 2e-2
    config.optimizer.schedule.warmup_steps = 1
    config.optimizer.qk_clip_tau = 1e-4
    config = resolve(replace_keys(resolve(config), {"model": TINY, "model.gqa.qkv_bias": True}))
    rng = np.random.default_rng(0)
    rows = [pack_row([np.tile(rng.integers(0, config.model.vocab, 4), 6), np.arange(8)], 32) for _ in range(4)]
    program = Program(config, jax.devices()[:1])
    state, batch = program.init(), program.batch_sharding().put(stack_rows(rows))
    start, losses = jax.tree.map(np.array, state.params), []
    for _ in range(config.train.steps):
        state, metrics = program.step(state, batch)
        losses.append(float(metrics.loss))
    assert metrics.healthy and losses[-1] < losses[0] - 0.5
    assert metrics.stats.expert_tokens.shape == (0, config.model.moe.experts) and float(metrics.balance_loss) == 0
    unchanged = jax.tree.map(lambda a, b: bool((a == b).all()), start, state.params)
    assert not any(jax.tree.leaves(unchanged))
    record = Recorder(config, {}).values(metrics, 1e-3, 1.0)
    assert record["clipped_heads"] > 0 and "expert_tokens" not in record
