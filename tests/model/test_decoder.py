"""The decoder under packing, padding and dtypes; what its statistics count."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.config import MLAConfig, ModelConfig, MoEConfig, replace_keys
from k2jax.model import K2, cast_params, combine_stats, forward, model_specs
from k2jax.model.router import route
from k2jax.params import abstract, initialize

TINY = ModelConfig(
    layers=3, dense_layers=1, d_model=32, heads=2, dense_ffn=48, vocab=50, init_std=0.2,
    mla=MLAConfig(q_lora_rank=16, kv_lora_rank=16, qk_nope_dim=8, qk_rope_dim=4, v_dim=8),
    moe=MoEConfig(expert_ffn=16, experts=6, active_experts=2, shared_experts=1),
)  # fmt: skip


@pytest.fixture(scope="module")
def params():
    return initialize(model_specs(TINY), jax.random.key(0), TINY.init_std)


@functools.partial(jax.jit, static_argnums=4)
def _forward(params, tokens, positions, exit, config):
    return forward(params, tokens, positions, exit, config)


LENGTH = 24


def run(params, *rows, config=TINY):
    """Two rows of documents, the second one empty if it is not given: one program for all tests."""
    batch = stack_rows([pack_row(row, LENGTH) for row in (*rows, [])[:2]])
    return _forward(params, jnp.asarray(batch.tokens), batch.positions, batch.exit, config)


def documents(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(0, TINY.vocab, n) for n in lengths]


def test_packed_documents_do_not_see_each_other_or_padding(params):
    docs = documents(9, 6, 4)
    packed, stats = run(params, docs)
    alone = [run(params, [doc]) for doc in docs]
    at = 0
    for doc, (hidden, _) in zip(docs, alone, strict=True):
        np.testing.assert_allclose(packed[0, at : at + len(doc)], hidden[0, : len(doc)], atol=2e-5)
        at += len(doc)
    seen = [s for _, s in alone]
    np.testing.assert_allclose(stats.max_logit["text"], np.max([s.max_logit["text"] for s in seen], axis=0), atol=1e-5)
    np.testing.assert_allclose(stats.expert_tokens, np.sum([s.expert_tokens for s in seen], axis=0), atol=1e-5)


def test_padding_is_not_routed_and_not_counted(params):
    _, stats = run(params, documents(5))
    assert np.asarray(stats.expert_tokens).sum(-1).tolist() == [5 * 2] * 2
    _, empty = run(params, [])
    assert np.isneginf(empty.max_logit["text"]).all() and float(empty.balance_loss) == 0


def test_statistics_of_parts_combine_to_those_of_the_whole(params):
    rows = documents(9, 6), documents(12)
    _, whole = run(params, *rows)
    parts = [run(params, row)[1] for row in rows]
    for a, b in zip(jax.tree.leaves(combine_stats(*parts)), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_statistics_are_in_layer_order(params):
    hot = jax.tree.map(lambda a: a, params)
    hot["moe"]["attention"]["q_b"] = params["moe"]["attention"]["q_b"].at[1, :, 1].mul(30.0)
    before, after = (np.asarray(run(p, documents(16))[1].max_logit["text"]) for p in (params, hot))
    assert np.unravel_index(np.argmax(after / before), after.shape) == (2, 1)  # the last layer's second head
    np.testing.assert_allclose(after[:2], before[:2], rtol=1e-5)


def test_positions_shift_without_effect_and_matter_when_they_stretch(params):
    tokens = jnp.asarray(documents(10)[0])[None]
    apply = jax.jit(lambda positions: K2(TINY).apply({"params": params}, tokens, positions=positions).hidden)
    places = jnp.arange(10)[None]
    plain, shifted, stretched = apply(places), apply(places + 7), apply(3 * places)
    np.testing.assert_allclose(shifted, plain, atol=2e-4)
    assert np.abs(stretched - plain).max() > 1e-2


def test_bfloat16_stays_close_to_float32(params):
    config = replace_keys(TINY, {"moe.active_experts": TINY.moe.experts})  # no near-ties that rounding could flip
    tokens = jnp.asarray(documents(12)[0])[None]
    models = K2(config), K2(config, dtype=jnp.bfloat16)
    exact, output = (jax.jit(model.apply)({"params": params}, tokens) for model in models)
    assert output.logits.dtype == jnp.float32 and output.hidden.dtype == jnp.bfloat16
    a, b = (np.asarray(each.logits, np.float64) for each in (output, exact))
    assert (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) > 0.999


def test_the_compute_copy_keeps_the_router_in_float32(params):
    cast = cast_params(params, model_specs(TINY), jnp.bfloat16)
    assert cast["moe"]["router"].dtype == cast["moe"]["router_bias"].dtype == jnp.float32
    assert cast["moe"]["experts"]["w13"].dtype == cast["embed"].dtype == jnp.bfloat16


def test_module_init_makes_the_declared_tree():
    variables = jax.eval_shape(K2(TINY).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    expected = jax.tree.map(lambda leaf: leaf.shape, abstract(model_specs(TINY)))
    assert jax.tree.map(lambda a: a.shape, variables["params"]) == expected


def test_balance_loss_of_an_even_router_is_one_per_row_and_layer(params):
    even = jax.tree.map(lambda a: a, params)
    even["moe"]["router"] = jnp.zeros_like(params["moe"]["router"])
    config = replace_keys(TINY, {"moe.active_experts": TINY.moe.experts})
    _, stats = run(even, documents(9), documents(12), config=config)
    assert float(stats.balance_loss) == pytest.approx(2 * 2, rel=1e-5)


def test_balance_loss_equals_its_definition():
    config = replace_keys(TINY, {"moe.experts": 5, "moe.active_experts": 2})
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 7, 32)).astype(np.float32), rng.normal(size=(32, 5)).astype(np.float32)
    real = np.ones((2, 7), bool)
    real[1, 4:] = False
    routing = jax.jit(route, static_argnums=4)(weight, np.zeros(5, np.float32), x, real, config)
    expected = 0.0
    for row in range(2):
        scores = 1 / (1 + np.exp(-(x[row].astype(np.float64) @ weight)))[real[row]]
        chosen = np.argsort(-scores, axis=-1)[:, :2]
        f = np.array([(chosen == e).sum() for e in range(5)]) * 5 / (2 * len(scores))
        expected += (f * (scores / scores.sum(-1, keepdims=True)).mean(0)).sum()
    assert float(routing.balance_loss) == pytest.approx(expected, rel=1e-5)


def test_the_selection_bias_chooses_but_does_not_weigh():
    config = replace_keys(TINY, {"moe.experts": 4, "moe.active_experts": 2})
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(1, 5, 32)).astype(np.float32), 0.1 * rng.normal(size=(32, 4)).astype(np.float32)
    real = np.ones((1, 5), bool)
    routing = jax.jit(route, static_argnums=4)(weight, np.array([0, 0, 9, 9], np.float32), x, real, config)
    assert set(np.asarray(routing.expert_ids).ravel().tolist()) == {2, 3}
    scores = 1 / (1 + np.exp(-(x @ weight)))[..., 2:]
    expected = scores / scores.sum(-1, keepdims=True) * config.moe.routed_scaling
    np.testing.assert_allclose(np.sort(routing.gates), np.sort(expected), rtol=1e-5)


def test_group_limits_keep_every_choice_inside_the_best_groups():
    config = replace_keys(
        TINY, {"moe.experts": 8, "moe.expert_groups": 4, "moe.active_groups": 2, "moe.active_experts": 3}
    )
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(1, 40, 32)).astype(np.float32), rng.normal(size=(32, 8)).astype(np.float32)
    bias = rng.normal(size=8).astype(np.float32) - 3  # negative choices: masking with 0 instead of -inf would show
    routing = jax.jit(route, static_argnums=4)(weight, bias, x, np.ones((1, 40), bool), config)
    choice = (1 / (1 + np.exp(-(x @ weight))) + bias)[0].reshape(40, 4, 2)
    for token, ids in enumerate(np.asarray(routing.expert_ids)[0]):
        best = set(np.argsort(-choice[token].sum(-1))[:2].tolist())
        assert {int(i) // 2 for i in ids} <= best


@pytest.mark.parametrize(("shape", "groups"), [((0, 5), 1), ((2, 0), 2), ((0, 0), 1)])
def test_a_batch_of_nothing_gives_nothing(params, shape, groups):
    config = replace_keys(TINY, {"moe.expert_groups": groups, "moe.active_groups": 1})
    output = jax.jit(K2(config).apply)({"params": params}, jnp.zeros(shape, jnp.int32))
    assert output.hidden.shape == (*shape, TINY.d_model) and output.logits.shape == (*shape, TINY.vocab)
    max_logit = output.stats.max_logit["text"]
    assert np.isneginf(max_logit).all() and max_logit.shape == (TINY.layers, TINY.heads)
    assert not output.stats.expert_tokens.any() and float(output.stats.balance_loss) == 0
