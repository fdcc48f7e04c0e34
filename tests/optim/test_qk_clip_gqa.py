"""QK-Clip of grouped-query attention: queries and their bias, against float64 NumPy and the attention itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from k2jax.config import GQAConfig, ModelConfig, MoEConfig, OptimizerConfig, replace_keys
from k2jax.model import model_specs
from k2jax.model.gqa import gqa
from k2jax.model.rope import rotary_table
from k2jax.optim import group_table, qk_clip
from tests.model.gqa_reference import gqa_layer
from tests.optim import muonclip_reference as ref
from tests.optim.test_qk_clip import clip_step

TAU = 5.0
TINY = ModelConfig(
    layers=3, dense_layers=1, d_model=12, heads=4, attention="gqa", dense_ffn=8, vocab=20, rope_theta=100.0,
    gqa=GQAConfig(kv_heads=2, head_dim=6), moe=MoEConfig(expert_ffn=8, experts=2, active_experts=1),
)  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["llama", "qwen2"])
def case(request):
    """(config, specs, params, updates); dense and expert layers are stacked apart."""
    config = replace_keys(TINY, {"gqa.qkv_bias": request.param})
    specs = model_specs(config)
    return config, specs, ref.random_like(specs, 0), ref.random_like(specs, 1, 0.05)


@pytest.mark.parametrize("alpha", [0.5, 0.0, 1.0])
def test_agrees_with_float64(case, alpha):
    """Keys are shared by heads, so that the whole factor goes to the queries whatever alpha is."""
    _, specs, params, updates = case
    max_logit = np.array([[7.0, 1.0, 5.0, 60.0], [-3.0, 50.0, -np.inf, 2.0], [5.0, 5.001, 9.0, 0.0]])
    clipped, got = clip_step(specs, params, updates, max_logit, alpha=alpha)
    plain = jax.tree.map(lambda w, u: w.astype(np.float64) + u, params, updates)
    for group, rows in (("dense", max_logit[:1]), ("moe", max_logit[1:])):
        expected = ref.qk_clip_gqa(plain[group]["attention"], rows, TAU)
        for name, weight in expected.items():
            np.testing.assert_allclose(got[group]["attention"][name], weight, atol=1e-6, rtol=0, err_msg=name)
            changed = (np.asarray(clipped[group]["attention"][name]) != updates[group]["attention"][name]).any()
            assert changed == (name in ("q", "q_bias")), name


def layers(tree):
    return [
        jax.tree.map(lambda w, i=i: w[i], tree[g]["attention"]) for g, n in (("dense", 1), ("moe", 2)) for i in range(n)
    ]


def test_recomputed_logits_of_clipped_heads_stay_below_tau(case):
    """On the same input, of the model's own attention and of float64 NumPy; the heads below tau keep theirs."""
    config, specs, params, updates = case
    x = np.random.default_rng(2).standard_normal((2, 7, config.d_model)).astype(np.float32)
    rotary = rotary_table(jnp.broadcast_to(jnp.arange(7), (2, 7)), config)

    def max_logits(tree):
        ours = np.stack([gqa(attention, jnp.asarray(x), rotary, None, config)[1] for attention in layers(tree)])
        oracle = np.stack([gqa_layer(attention, x, config)[1] for attention in layers(tree)])
        np.testing.assert_allclose(ours, oracle, rtol=1e-5)
        return oracle

    before = max_logits(optax.apply_updates(params, updates))
    tau = float(np.median(before))
    _, weights = clip_step(specs, params, updates, before, tau=tau)
    after = max_logits(weights)
    assert (before > tau).sum() == before.size // 2
    assert after.max() <= tau * (1 + 1e-5)
    np.testing.assert_allclose(after, np.minimum(before, tau), rtol=1e-5)


def test_a_non_finite_maximum_poisons_the_update(case):
    config, specs, params, updates = case
    max_logit = np.zeros((3, config.heads))
    max_logit[0, 3] = np.inf
    clipped, _ = clip_step(specs, params, updates, max_logit)
    assert np.isnan(clipped["dense"]["attention"]["q"][0, :, 3]).all()
    assert np.isfinite(clipped["dense"]["attention"]["q"][0, :, :3]).all()


def test_qk_norm_is_refused():
    """Scaling a projection whose output is normalised changes no logit."""
    specs = model_specs(replace_keys(TINY, {"gqa.qk_norm": True}))
    with pytest.raises(ValueError, match=r"q_norm.*QK-norm|k_norm.*QK-norm"):
        qk_clip(specs)


def test_keys_are_still_required():
    specs = model_specs(TINY)
    del specs["moe"]["attention"]["k"]
    with pytest.raises(ValueError, match="queries and keys"):
        qk_clip(specs)


def test_biases_and_norms_get_adamw_without_decay():
    specs = model_specs(replace_keys(TINY, {"gqa.qkv_bias": True, "gqa.qk_norm": True}))
    rows = {row.name: row for row in group_table(specs, OptimizerConfig())}
    for name in ("q", "k", "v", "o"):
        assert (rows[f"moe/attention/{name}"].group, rows[f"moe/attention/{name}"].decays) == ("muon", True)
    for name in ("q_bias", "k_bias", "v_bias", "q_norm", "k_norm"):
        assert (rows[f"moe/attention/{name}"].group, rows[f"moe/attention/{name}"].decays) == ("adamw", False)
