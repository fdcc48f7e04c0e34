"""Grouped queries over cached tokens, against NumPy in float64: as a CPU computes them, and as accelerators do."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.config import GQAConfig, ModelConfig
from k2jax.model.cached_attention import Visible, gqa_cached

N, D, H, G, E, PAGE, PAGES = 3, 24, 6, 2, 8, 4, 5
STARTS = (0, 7, 20)
CONFIG = ModelConfig(attention="gqa", layers=2, d_model=D, heads=H, gqa=GQAConfig(kv_heads=G, head_dim=E))


def arrays(T, seed=0):
    """Weights, inputs, turns of the rotation, and the cache of two layers with pages in any order."""
    rng = np.random.default_rng(seed)
    params = {"q": (H, E), "k": (G, E), "v": (G, E)}
    params = {name: rng.normal(size=(D, *shape)) / 5 for name, shape in params.items()}
    params["o"] = rng.normal(size=(H, E, D)) / 5
    x, angle = rng.normal(size=(N, T, D)), rng.uniform(0, 6, (N, T, E // 2))
    cache = rng.normal(size=(2, N * PAGES + 1, PAGE, 2 * G * E))
    pages = rng.permutation(N * PAGES + 1)[: N * PAGES].reshape(N, PAGES)
    return params, x, angle, cache, pages


def rotated(values, angle):
    """Halves of the last axis are turned against each other; ``values`` are ``[T, heads, E]``."""
    first, second = np.split(values, 2, -1)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def expected(params, x, angle, cache, pages):
    """Token by token and head by head."""
    outputs, written, T = [], [], x.shape[1]
    for n in range(N):
        context = cache[1][pages[n]].reshape(-1, 2, G, E)[: STARTS[n]]
        q, k = (rotated(np.einsum("td,dhe->the", x[n], params[name]), angle[n]) for name in "qk")
        v = np.einsum("td,dhe->the", x[n], params["v"])
        written.append(np.concatenate([k.reshape(T, -1), v.reshape(T, -1)], -1))
        for t in range(T):
            keys, values = np.concatenate([context[:, 0], k[: t + 1]]), np.concatenate([context[:, 1], v[: t + 1]])
            mixed = np.zeros((H, E))
            for h in range(H):
                logits = keys[:, h // (H // G)] @ q[t, h] / np.sqrt(E)
                weights = np.exp(logits - logits.max())
                mixed[h] = weights @ values[:, h // (H // G)] / weights.sum()
            outputs.append(np.einsum("he,hed->d", mixed, params["o"]))
    return np.array(outputs).reshape(N, T, D), np.array(written)


def computed(params, x, angle, cache, pages, rows=slice(None)):
    params = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    T = x.shape[1]
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (N, T, T))
    start = jnp.array(STARTS, jnp.int32)
    visible = Visible(
        jnp.asarray(cache, jnp.float32), jnp.int32(1), jnp.asarray(pages[rows]), start[rows], causal[rows]
    )
    rotary = jnp.cos(angle[rows]), jnp.sin(angle[rows])
    return jax.jit(lambda x: gqa_cached(params, x, rotary, visible, CONFIG))(jnp.asarray(x[rows], jnp.float32))


@pytest.mark.parametrize("new", [1, 2])
@pytest.mark.parametrize("on", ["cpu", "accelerators"])
def test_sequences_of_any_length_attend_to_their_own_pages_and_earlier_new_tokens(on, new, monkeypatch):
    if on == "accelerators":
        monkeypatch.setattr(lax, "platform_dependent", lambda *arrays, default, **others: default(*arrays))
    given = arrays(new)
    for each, wanted in zip(computed(*given), expected(*given), strict=True):
        np.testing.assert_allclose(each, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("new", [1, 2])
def test_on_a_cpu_a_sequence_is_computed_as_if_it_were_alone(new):
    given = arrays(new, 1)
    whole = computed(*given)[0]
    alone = [computed(*given, slice(n, n + 1))[0] for n in range(N)]
    np.testing.assert_array_less(np.abs(whole - jnp.concatenate(alone)), 1e-6)
