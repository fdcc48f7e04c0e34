"""Which tokens may be drawn, how often, and what log-probability they are given, against plain NumPy."""

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np

from k2jax.inference.sampler import Choice, sample

ROWS, VOCAB = 4, 12


def choice(rows, **values):
    defaults = {
        "temperature": 1.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "top_k": 0,
        "seed": 0,
        "index": 0,
        "alternatives": False,
    }
    dtypes = {"top_k": np.int32, "seed": np.uint32, "index": np.int32, "alternatives": bool}
    return Choice(
        *(np.broadcast_to(np.asarray(values.get(k, d), dtypes.get(k, np.float32)), rows) for k, d in defaults.items())
    )


def allowed(logits, temperature, top_p, min_p, top_k):
    """Token ids that min_p, then top_k, then top_p of the rest leave, in float64."""
    p = np.exp(logits / temperature - (logits / temperature).max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = [t for t in order if p[t] >= min_p * p.max()]
    kept = kept[: top_k or None]
    mass, total, left = 0.0, sum(p[t] for t in kept), []
    for t in kept:
        if mass >= top_p * total and left:
            break
        left.append(t)
        mass += p[t]
    return set(left)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.integers(0, 10_000),
    st.floats(0.2, 3.0),
    st.floats(0.05, 1.0),
    st.one_of(st.just(0.0), st.floats(0.01, 0.9)),
    st.integers(0, VOCAB + 3),
)
def test_only_allowed_tokens_are_drawn_and_all_of_them(seed, temperature, top_p, min_p, top_k):
    rng = np.random.default_rng(seed)
    logits = rng.permutation(np.linspace(0, 4, VOCAB)).astype(np.float32)  # no ties
    rows = 512
    asked = choice(
        rows, temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k, seed=np.arange(rows), index=seed
    )
    ids, logprobs, *_ = map(np.asarray, sample(np.tile(logits, (rows, 1)), asked))
    expected = allowed(logits.astype(np.float64), temperature, top_p, min_p, top_k)
    # Borders that float32 may see on either side: compare only where float64 keeps a distance.
    nearby = allowed(logits.astype(np.float64), temperature, min(1.0, top_p * 1.0001), min_p * 0.9999, top_k)
    hypothesis.assume(expected == nearby)
    assert set(ids) <= expected
    scaled = logits.astype(np.float64) / temperature
    logp = scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()
    np.testing.assert_allclose(logprobs, logp[ids], atol=1e-5)
    mass = np.exp(logp)[list(expected)]
    likely = {t for t, m in zip(expected, mass / mass.sum(), strict=True) if m > 0.05}
    assert likely <= set(ids)  # missing one has probability 0.95^512


def test_frequencies_are_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    rows = 20_000
    asked = choice(rows, temperature=2.0, seed=7, index=np.arange(rows))
    ids = np.asarray(sample(np.tile(logits, (rows, 1)), asked)[0])
    p = np.sqrt([0.5, 0.3, 0.15, 0.05])
    p /= p.sum()
    np.testing.assert_allclose(np.bincount(ids, minlength=4) / rows, p, atol=4 * np.sqrt(0.25 / rows))


def test_truncation_changes_no_row_that_does_not_ask_for_it():
    logits = np.random.default_rng(0).standard_normal((ROWS, VOCAB)).astype(np.float32)
    asked = {"seed": np.arange(ROWS), "index": 3, "temperature": np.array([0.0, 0.5, 1.0, 2.0]), "alternatives": True}
    plain = sample(logits, choice(ROWS, **asked))
    among_others = sample(logits, choice(ROWS, **asked, top_k=np.array([0, 0, 0, 1])))
    for a, b in zip(plain[:4], among_others[:4], strict=True):
        np.testing.assert_array_equal(a[:3], b[:3])
    assert plain.tokens[0] == logits[0].argmax() and among_others.tokens[3] == logits[3].argmax()


def test_a_row_does_not_know_its_place():
    logits = np.random.default_rng(1).standard_normal((ROWS, VOCAB)).astype(np.float32)
    asked = choice(ROWS, seed=np.arange(ROWS) + 5, index=np.arange(ROWS), top_p=0.8)
    ids = np.asarray(sample(logits, asked)[0])
    turned = jax.tree.map(lambda part: part[::-1], asked)
    np.testing.assert_array_equal(np.asarray(sample(logits[::-1], turned)[0])[::-1], ids)


def test_alternatives_come_best_first():
    logits = np.random.default_rng(2).standard_normal((ROWS, VOCAB)).astype(np.float32)
    _, _, ids, logprobs, _ = map(np.asarray, sample(logits, choice(ROWS, alternatives=np.arange(ROWS) == 2)))
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=-1))  # VOCAB is less than there could be
    assert (np.diff(logprobs) < 0).all()
    assert not any(np.asarray(array).any() for array in sample(logits, choice(ROWS))[2:])  # nobody asks


def test_of_equal_logits_the_first_token_is_taken_and_of_none_that_is_finite_some():
    logits = np.full((ROWS, VOCAB), -1.0, np.float32)
    logits[1, [4, 7]], logits[2, 5:], logits[3, 3] = 2.0, np.inf, np.nan
    for last in (0.0, 1.0):  # greedy rows alone, and beside one that is drawn
        ids = np.asarray(sample(logits, choice(ROWS, temperature=np.array([0.0, 0.0, 0.0, last])))[0])
        assert ids[:3].tolist() == [0, 4, 5] and ids.dtype == np.int32 and 0 <= ids[3] < VOCAB
