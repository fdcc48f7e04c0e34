"""What becomes of a loss's terms: temperatures, denominators and metrics, against NumPy float64."""

import jax.numpy as jnp
import numpy as np

from k2jax.batch import PackedBatch
from k2jax.losses import Loss
from k2jax.parallel.objective import LossShares, Objective, undivided

BATCH, SEQUENCE, WIDTH, VOCAB = 2, 5, 4, 7


class Warm(Loss):
    """Two terms with weights and temperatures of their own."""

    entropy = True

    def denominators(self, targets):
        return {"score": targets["weights"].sum(), "spread": jnp.float32(2.0)}

    def __call__(self, scores, targets, rows):
        entropy = rows.sum(scores.entropy)
        score = rows.sum(targets["weights"] * scores.logprob)
        return {"score": (score, {"tokens": rows.sum(targets["weights"])}), "spread": (entropy, {})}

    def temperature(self, targets):
        return targets["temperature"]


def test_terms_have_their_temperature_and_their_denominator():
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(BATCH, SEQUENCE, WIDTH)), rng.normal(size=(VOCAB, WIDTH))
    tokens = rng.integers(0, VOCAB, (BATCH, SEQUENCE))
    parent = np.tile(np.arange(SEQUENCE) - 1, (BATCH, 1))
    weights, temperature = (rng.uniform(0.5, 2.0, (BATCH, SEQUENCE)) for _ in range(2))
    targets = {"weights": jnp.asarray(weights, jnp.float32), "temperature": jnp.asarray(temperature, jnp.float32)}
    exit = np.full((BATCH, SEQUENCE), SEQUENCE)
    batch = PackedBatch(*(jnp.asarray(a, jnp.int32) for a in (tokens, parent + 1, exit, parent)), targets=targets)
    objective = Objective(Warm(), Warm().denominators(targets), 0.0)
    shares = objective.shares(jnp.asarray(hidden, jnp.float32), jnp.asarray(head, jnp.float32), batch)

    logits = hidden[:, :-1] @ head.T / temperature[:, 1:, None]
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(logprobs, tokens[:, 1:, None], -1)[..., 0]
    score = (weights[:, 1:] * picked).sum()
    spread = -(np.exp(logprobs) * logprobs).sum()
    np.testing.assert_allclose(shares.terms["score"], score / weights.sum(), rtol=1e-5)
    np.testing.assert_allclose(shares.terms["spread"], spread / 2.0, rtol=1e-5)
    np.testing.assert_allclose(shares.metrics["score/tokens"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(shares.total, score / weights.sum() + spread / 2.0, rtol=1e-5)
    sums = undivided(objective).shares(jnp.asarray(hidden, jnp.float32), jnp.asarray(head, jnp.float32), batch)
    np.testing.assert_allclose(sums.terms["score"], score, rtol=1e-5)


def test_the_total_is_the_sum_of_the_terms():
    assert float(LossShares({"a": jnp.float32(1.5), "b": jnp.float32(-0.5)}, {}, {}).total) == 1.0
