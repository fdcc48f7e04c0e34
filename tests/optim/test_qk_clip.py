"""QK-Clip against float64 NumPy and against an attention that uses the clipped weights."""

import dataclasses
import warnings

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from k2jax.optim.qk_clip import qk_clip, qk_clip_gamma
from tests.optim import muonclip_reference as ref
from tests.optim.muonclip_reference import HEADS, NOPE, ROPE, model_specs, random_like

TAU = 5.0


def clip_step(specs, params, updates, max_logit, **options):
    """The update after clipping, and the weights it leads to."""
    transformation = qk_clip(specs, **{"tau": TAU, **options})
    state = transformation.init(params)
    clipped, _ = jax.jit(transformation.update)(updates, state, params, max_logit=jnp.asarray(max_logit, jnp.float32))
    return clipped, optax.apply_updates(params, clipped)


@pytest.mark.parametrize(("alpha", "q_lora"), [(0.5, True), (0.3, False), (0.0, True), (1.0, True)])
def test_agrees_with_float64(alpha, q_lora):
    """Per layer over both layer groups and per head, with queries from a latent or from the stream."""
    specs = model_specs(dense=1, moe=2, q_lora=q_lora)
    params, updates = random_like(specs, 0, 0.1), random_like(specs, 1, 0.01)
    max_logit = np.array([[7.0, 1.0], [-3.0, 50.0], [5.0, 5.001]])
    _, got = clip_step(specs, params, updates, max_logit, alpha=alpha)
    plain = jax.tree.map(lambda w, u: w.astype(np.float64) + u, params, updates)
    for group, rows in (("dense", max_logit[:1]), ("moe", max_logit[1:])):
        expected = ref.qk_clip(plain[group]["attention"], rows, TAU, alpha)
        for name, weight in expected.items():
            np.testing.assert_allclose(got[group]["attention"][name], weight, atol=1e-6, rtol=0, err_msg=name)


def test_only_projections_of_clipped_heads_change():
    """Everything else (v, shared rope key, output, other heads and layers, experts) keeps its update bit for bit."""
    specs = model_specs()
    params, updates = random_like(specs, 0), random_like(specs, 1, 1e-3)
    max_logit = np.full((3, HEADS), 4.0)
    max_logit[1, 0] = 80.0  # the first layer with experts, head 0
    clipped, _ = clip_step(specs, params, updates, max_logit)
    expected_q, expected_kv = (np.zeros(specs["moe"]["attention"][n].shape, bool) for n in ("q_b", "kv_b"))
    expected_q[0, :, 0, :] = True
    expected_kv[0, :, 0, :NOPE] = True
    changed = jax.tree.map(lambda a, b: np.asarray(a) != b, clipped, updates)
    attention = changed["moe"]["attention"]
    np.testing.assert_array_equal(attention.pop("q_b"), expected_q)
    np.testing.assert_array_equal(attention.pop("kv_b"), expected_kv)
    assert not any(leaf.any() for leaf in jax.tree.leaves(changed))


def attention_logits(attention, latent_q, latent_kv, rope_key):
    """Scaled logits ``[L, H, T, S]`` in float64, with rope angles of 0."""
    q = np.einsum("ltr,lrhd->lhtd", latent_q, np.asarray(attention["q_b"], np.float64))
    kv = np.einsum("lsr,lrhd->lhsd", latent_kv, np.asarray(attention["kv_b"], np.float64))
    nope = np.einsum("lhtd,lhsd->lhts", q[..., :NOPE], kv[..., :NOPE])
    rope = np.einsum("lhtd,lsd->lhts", q[..., NOPE:], rope_key)
    return (nope + rope) * (NOPE + ROPE) ** -0.5


def attention_case():
    specs = model_specs(dense=1, moe=2)
    params, updates = random_like(specs, 0), random_like(specs, 1, 0.05)
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal((2, 7, width)) for width in (ref.Q_LORA, ref.KV_LORA, ROPE)]
    return specs, params, updates, inputs


@pytest.mark.parametrize("alpha", [0.5, 0.2])
def test_clipped_heads_reach_tau_exactly(alpha):
    """The largest logit of an attention with the clipped weights is tau, whatever the split; others stay."""
    specs, params, updates, inputs = attention_case()
    before = attention_logits(optax.apply_updates(params, updates)["moe"]["attention"], *inputs)
    top = before.max(axis=(-1, -2))
    tau = float(np.sort(top.ravel())[1]) + 1e-3  # two heads of four pass it
    max_logit = np.concatenate([[[0.0, 0.0]], top])
    _, weights = clip_step(specs, params, updates, max_logit, tau=tau, alpha=alpha)
    after = attention_logits(weights["moe"]["attention"], *inputs)
    assert (top > tau).sum() == 2
    np.testing.assert_allclose(after.max(axis=(-1, -2)), np.minimum(top, tau), rtol=1e-5)


def test_unreduced_statistics_are_refused():
    """Per micro-batch, per layer only, or with heads first: never reduced or broadcast silently."""
    specs = model_specs()
    params = random_like(specs, 0)
    for shape in ((2, 3, HEADS), (3,), (3, 1), (1, HEADS), (HEADS, 3), ()):
        with pytest.raises(ValueError, match="max_logit"):
            clip_step(specs, params, params, np.ones(shape))
    transformation = qk_clip(specs)
    with pytest.raises(ValueError, match="max_logit"):
        transformation.update(params, transformation.init(params), params)
    with pytest.raises(ValueError, match="parameters"):
        transformation.update(params, transformation.init(params), max_logit=jnp.ones((3, HEADS)))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_non_finite_maximum_poisons_the_update(bad):
    """The factor is never γ = τ / inf = 0, which would set the head's weights to zero."""
    specs = model_specs()
    params, updates = random_like(specs, 0), random_like(specs, 1, 1e-3)
    max_logit = np.zeros((3, HEADS))
    max_logit[2, 1] = bad
    for alpha in (0.0, 0.5, 1.0):
        clipped, _ = clip_step(specs, params, updates, max_logit, alpha=alpha)
        assert np.isnan(np.asarray(clipped["moe"]["attention"]["q_b"])[1, :, 1, NOPE:]).all()
        assert not np.isfinite(optax.global_norm(clipped))


def test_heads_that_saw_nothing_or_only_negative_logits_are_not_clipped():
    specs = model_specs()
    params, updates = random_like(specs, 0), random_like(specs, 1, 1e-3)
    max_logit = np.array([[-np.inf, 0.0], [-5.0, -1e30], [TAU, 1e-30]])
    clipped, _ = clip_step(specs, params, updates, max_logit)
    jax.tree.map(np.testing.assert_array_equal, clipped, updates)


@hypothesis.given(st.lists(st.floats(width=32), min_size=1, max_size=6), st.floats(0.5, 1e3, width=32))
@hypothesis.example([8.507060187143942e37, 8.5070586e37, 3e38], 1.0)  # 1 / S underflows for the first and the last
def test_gamma(max_logit, tau):
    limits = np.finfo(np.float32)
    largest = np.float32(min(tau / float(limits.tiny), float(limits.max)))
    gamma = np.asarray(qk_clip_gamma(jnp.asarray(max_logit, jnp.float32), tau))
    for s, g in zip(max_logit, gamma, strict=True):
        if np.isnan(s) or s == np.inf or s > largest:
            assert np.isnan(g)
        elif s <= tau:
            assert g == 1.0
        else:
            assert g <= 1.0 and g * s == pytest.approx(tau, rel=1e-5, abs=1e-37)


@pytest.mark.parametrize("tau", [0.5, 12.0, 100.0])
def test_no_threshold_overflows_float32(tau):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gamma = jax.jit(lambda s: qk_clip_gamma(s, tau))(jnp.float32([1e30, 1.0]))
    np.testing.assert_allclose(gamma, [tau / 1e30, min(1.0, tau)], rtol=1e-6)


def test_master_weights_are_clipped_in_float32():
    """A factor close to 1 would vanish in bfloat16; a bfloat16 copy is refused."""
    specs = model_specs()
    params = random_like(specs, 0)
    zeros = jax.tree.map(np.zeros_like, params)
    _, weights = clip_step(specs, params, zeros, np.full((3, HEADS), TAU * 1.0002))
    q, before = (np.asarray(tree["moe"]["attention"]["q_b"]) for tree in (weights, params))
    np.testing.assert_allclose(q[..., NOPE:] / before[..., NOPE:], 1 / 1.0002, rtol=1e-6)
    half = jax.tree.map(lambda w: jnp.asarray(w, jnp.bfloat16), params)
    with pytest.raises(ValueError, match="master"):
        clip_step(specs, half, half, np.full((3, HEADS), 9.0))


def test_targets_come_from_segments_and_not_from_names():
    """The same weights under other names are clipped the same; unknown or missing segments are errors."""
    specs, renamed = model_specs(dense=0), model_specs(dense=0)
    attention = renamed["moe"].pop("attention")
    renamed["moe"]["mixer"] = {f"z_{name}": spec for name, spec in attention.items()}
    params = random_like(specs, 0)
    other = {**params, "moe": {**params["moe"], "mixer": {f"z_{n}": w for n, w in params["moe"]["attention"].items()}}}
    del other["moe"]["attention"]
    _, a = clip_step(specs, params, params, np.full((2, HEADS), 9.0))
    _, b = clip_step(renamed, other, other, np.full((2, HEADS), 9.0))
    np.testing.assert_array_equal(a["moe"]["attention"]["q_b"], b["moe"]["mixer"]["z_q_b"])

    q_b = attention["q_b"]
    with pytest.raises(ValueError, match="q_extra"):
        qk_clip({"q": dataclasses.replace(q_b, segments=(("q_extra", NOPE), ("q_rope", ROPE)))})
    with pytest.raises(ValueError, match="queries and keys"):
        qk_clip({"q": dataclasses.replace(q_b, segments=())})
    with pytest.raises(ValueError, match="queries and keys"):
        qk_clip({"q": q_b})
