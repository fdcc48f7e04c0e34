"""token_logprobs against float64 NumPy and against automatic differentiation of the textbook formula."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import TokenScores
from k2jax.model import head as head_module
from k2jax.model import token_logprobs, token_scores


def textbook(hidden, parent, tokens, head, temperature):
    """Whole logits at once, in the dtype of the inputs."""
    rows = jnp.arange(hidden.shape[0])[:, None]
    logits = hidden[rows, jnp.maximum(parent, 0)] @ head.T / jnp.asarray(temperature)[..., None]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0]
    return jnp.where(parent < 0, 0.0, picked)


def textbook_scores(hidden, parent, tokens, head, temperature):
    """Log-probabilities and entropies from whole logits at once, in the dtype of the inputs."""
    rows = jnp.arange(hidden.shape[0])[:, None]
    logits = hidden[rows, jnp.maximum(parent, 0)] @ head.T / jnp.asarray(temperature)[..., None]
    logprobs = jax.nn.log_softmax(logits)
    entropy = jnp.where(parent < 0, 0.0, -(jnp.exp(logprobs) * logprobs).sum(-1))
    return TokenScores(textbook(hidden, parent, tokens, head, temperature), entropy)


def problem(batch, sequence, width, vocab, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(batch, sequence, width)).astype(np.float32)
    head = rng.normal(size=(vocab, width)).astype(np.float32)
    tokens = rng.integers(0, vocab, (batch, sequence))
    parent = np.array([[rng.integers(-1, t) if t else -1 for t in range(sequence)] for _ in range(batch)])
    cotangent = rng.normal(size=(batch, sequence)).astype(np.float32)
    return hidden, parent.astype(np.int32), tokens.astype(np.int32), head, cotangent


@pytest.mark.parametrize(
    ("sizes", "elements", "chunk_tokens", "temperature"),
    [((1, 3, 2), 1, 4, 1.0), ((2, 9, 39), 64, 7, 0.5), ((3, 8, 40), 10_000, 4096, 1.0)],
)
def test_values_and_gradients_equal_the_textbook_in_any_chunks(sizes, elements, chunk_tokens, temperature):
    """``sizes`` are those of the batch, the sequence and the vocabulary."""
    batch, sequence, vocab = sizes
    hidden, parent, tokens, head, cotangent = problem(batch, sequence, 5, vocab)

    @functools.partial(jax.jit, static_argnums=0)
    def compute(both, hidden, head):
        """Scores, and gradients of their sum with cotangents of their own."""
        scores, pull = jax.vjp(lambda h, w: both(h, parent, tokens, w, temperature), hidden, head)
        dtype = scores.logprob.dtype
        return scores, pull(TokenScores(jnp.asarray(cotangent, dtype), jnp.asarray(1 - cotangent, dtype)))

    with jax.enable_x64(True):
        exact = (jnp.asarray(hidden, jnp.float64), jnp.asarray(head, jnp.float64))
        expected, expected_grads = compute(textbook_scores, *exact)
    with (
        mock.patch.object(head_module, "CHUNK_ELEMENTS", elements),
        mock.patch.object(head_module, "CHUNK_TOKENS", chunk_tokens),
    ):
        values, grads = compute(functools.partial(token_scores, entropy=True), hidden, head)
    for value, expected_value in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, expected_value, atol=1e-5)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(grad, expected_grad, atol=2e-5 * max(1, np.abs(expected_grad).max()))


def test_log_probabilities_alone_are_those_beside_entropies():
    hidden, parent, tokens, head, cotangent = problem(2, 9, 5, 39)
    scores = functools.partial(token_scores, entropy=True)
    alone, pull = jax.vjp(lambda h, w: token_logprobs(h, parent, tokens, w), hidden, head)
    beside, pull_both = jax.vjp(lambda h, w: scores(h, parent, tokens, w), hidden, head)
    assert (alone == beside.logprob).all()
    for a, b in zip(pull(cotangent), pull_both(TokenScores(cotangent, jnp.zeros_like(cotangent))), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_entropies_are_exact_for_flat_and_for_peaked_distributions(scale):
    """Logits far from 0 cancel nothing: the mean is taken of logits less the largest one."""
    hidden, parent, tokens, head, _ = problem(2, 6, 5, 39)
    head = np.concatenate([head, np.full_like(head, 3.0)]) * scale
    with jax.enable_x64(True):
        expected = textbook_scores(
            jnp.asarray(hidden, jnp.float64), parent, tokens, jnp.asarray(head, jnp.float64), 1.0
        )
    with mock.patch.object(head_module, "CHUNK_ELEMENTS", 64):
        entropy = token_scores(hidden, parent, tokens, head, entropy=True).entropy
    np.testing.assert_allclose(entropy, expected.entropy, atol=3e-5)


def test_a_temperature_per_token_belongs_to_the_target():
    hidden, parent, tokens, head, _ = problem(2, 6, 5, 11)
    temperature = np.random.default_rng(1).uniform(0.5, 2, (2, 6)).astype(np.float32)
    expected = textbook(hidden, parent, tokens, head, temperature)
    np.testing.assert_allclose(token_logprobs(hidden, parent, tokens, head, temperature), expected, atol=1e-5)


def test_tokens_without_a_parent_give_zero_and_no_gradient():
    hidden, parent, tokens, head, _ = problem(1, 4, 5, 11)
    parent = np.full_like(parent, -1)
    values, pull = jax.vjp(lambda h, w: token_logprobs(h, parent, tokens, w), hidden, head)
    assert not np.asarray(values).any()
    assert not any(np.asarray(g).any() for g in pull(jnp.ones_like(values)))


@pytest.mark.parametrize("vocab", [4096, 5003])
def test_memory_stays_below_the_logits(vocab):
    tokens = 4096
    hidden = jax.ShapeDtypeStruct((1, tokens, 16), jnp.float32)
    head = jax.ShapeDtypeStruct((vocab, 16), jnp.float32)
    ints = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    with mock.patch.object(head_module, "CHUNK_ELEMENTS", 1 << 20):
        gradient = jax.grad(lambda h, w, p, t: token_logprobs(h, p, t, w).sum(), argnums=(0, 1))
        compiled = jax.jit(gradient).lower(hidden, head, ints, ints).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.4 * tokens * vocab * 4


def test_bfloat16_inputs_accumulate_in_float32():
    hidden, parent, tokens, head, _ = problem(1, 8, 64, 50)
    low = [jnp.asarray(a, jnp.bfloat16) for a in (hidden, head)]
    expected = textbook(low[0].astype(jnp.float32), parent, tokens, low[1].astype(jnp.float32), 1.0)
    np.testing.assert_allclose(token_logprobs(low[0], parent, tokens, low[1]), expected, atol=1e-4)


def test_bfloat16_gradients_of_many_chunks_add_up_in_float32():
    """128 chunks against one: what separates them is one rounding of each share, not a sum in bfloat16."""
    hidden, parent, tokens, head, _ = problem(1, 512, 8, 16)
    low = [jnp.asarray(a, jnp.bfloat16) for a in (hidden, head)]
    gradient = jax.grad(lambda w, h: token_logprobs(h, parent, tokens, w.astype(jnp.bfloat16)).sum())
    whole = gradient(low[1].astype(jnp.float32), low[0])
    with mock.patch.object(head_module, "CHUNK_TOKENS", 4):
        parts = gradient(low[1].astype(jnp.float32), low[0])
    assert float(jnp.linalg.norm(parts - whole) / jnp.linalg.norm(whole)) < 5e-3
