"""Penalties and biases against plain NumPy in float64: what is drawn, and both log-probabilities, whatever happens."""

from collections import Counter
import dataclasses

import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference.adjustments import AdjustmentState, empty_adjustments
from k2jax.inference.sampler import sample
from tests.inference.test_sampler import choice
from tests.inference.tiny import GQA, engine, finish, ids_of, oracle, prompts

PROMPT = prompts(20)[0]
ASKED = Sampling(
    max_tokens=14, temperature=0.6, seed=3, frequency_penalty=1.5, presence_penalty=-1.0, logit_bias=((7, 3.0), (9, 2))
)


def log_softmax(values):
    values = np.asarray(values, np.float64)
    shifted = values - values.max()
    return shifted - np.log(np.exp(shifted).sum())


def changed(logits, asked, prompt, generated):
    """Logits by the words of the definition, one token after the other."""
    logits, counts = np.array(logits, np.float64), Counter(generated)
    for token, bias in asked.logit_bias:
        logits[token] += bias
    for token in {*prompt, *generated}:
        penalty = asked.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in counts.items():
        logits[token] -= asked.frequency_penalty * count + asked.presence_penalty
    return logits


def test_rows_of_all_kinds_are_those_of_the_definition():
    rng, vocab = np.random.default_rng(0), 50
    logits = rng.standard_normal((24, vocab)).astype(np.float32) * 3
    drawn_before = [(rng.integers(0, vocab, 30).tolist(), rng.integers(0, vocab, 20).tolist()) for _ in logits]
    penalties = rng.uniform(-2, 2, (24, 2)).round(2)
    repetition = rng.choice([1.0, 0.5, 1.3], 24)
    asked = [
        Sampling(presence_penalty=a, frequency_penalty=b, repetition_penalty=r, logit_bias=((i, 4.0), (i + 1, -2.5)))
        for i, ((a, b), r) in enumerate(zip(penalties, repetition, strict=True))
    ]
    asked[5] = Sampling()
    adjustments = empty_adjustments(24, 60, vocab)
    for row, (each, (prompt, generated)) in enumerate(zip(asked, drawn_before, strict=True)):
        state = AdjustmentState(each, prompt)
        for token in generated if each.is_adjusted else ():
            state.take(token)
        state.fill(adjustments, row)
    chosen = choice(24, temperature=0.8, seed=np.arange(24))._replace(adjustments=adjustments)
    drawn = sample(logits, chosen)
    for row, (each, (prompt, generated)) in enumerate(zip(asked, drawn_before, strict=True)):
        token = int(drawn.tokens[row])
        expected = log_softmax(changed(logits[row], each, prompt, generated) / 0.8)
        assert abs(drawn.logprobs[row] - expected[token]) < 2e-5
        assert abs(drawn.free_logprobs[row] - log_softmax(logits[row] / 0.8)[token]) < 2e-5
    assert drawn.free_logprobs[5] == drawn.logprobs[5]
    plain = sample(logits, chosen._replace(adjustments=None))
    assert plain.tokens[5] == drawn.tokens[5] and plain.free_logprobs is None
    greedy = sample(logits, choice(24, temperature=0.0)._replace(adjustments=adjustments))
    best = [changed(logits[r], asked[r], *drawn_before[r]).argmax() for r in range(24) if asked[r].is_adjusted]
    assert [int(t) for r, t in enumerate(greedy.tokens) if r != 5] == best


def test_tokens_of_one_program_count_for_each_other_and_for_no_neighbour():
    run = engine(GQA)
    mine, plain = run.generate([PROMPT, PROMPT], [ASKED, dataclasses.replace(Sampling(14, seed=3), temperature=0.6)])
    at = len(PROMPT) - 1
    free = oracle(GQA, mine.ids, 1.0)[at:-1]  # up to a constant, which only the penalty of repetitions would see
    assert len(mine.tokens) == 14 and max(Counter(mine.tokens).values()) > 1
    for index, (row, token) in enumerate(zip(free, mine.tokens, strict=True)):
        expected = log_softmax(changed(row, ASKED, PROMPT, mine.tokens[:index]) / 0.6)
        assert abs(mine.logprobs[index] - expected[token]) < 2e-4
        assert abs(mine.free_logprobs[index] - log_softmax(row / 0.6)[token]) < 2e-4
    assert ids_of([plain]) == ids_of(engine(GQA).generate([PROMPT], plain.sampling)) and not plain.free_logprobs
    trainable = mine.completion().trainable
    assert not trainable.all() and plain.completion().trainable.all()


@pytest.mark.parametrize("how", ["resumed", "preempted"])
def test_interruptions_change_nothing(how):
    asked = dataclasses.replace(ASKED, repetition_penalty=1.4)
    [whole] = engine(GQA).generate([PROMPT], asked)
    run = engine(GQA)
    request = run.submit(PROMPT, asked, list(whole.tokens[:5]) if how == "resumed" else ())
    if how == "preempted":
        while len(request.tokens) < 5:
            run.step()
        run.release(weights=False)
    finish(run)
    assert ids_of([request]) == ids_of([whole])
    np.testing.assert_allclose(request.logprobs[5:], whole.logprobs[5:], atol=1e-4)


def test_a_bias_of_a_token_that_is_none_is_refused():
    with pytest.raises(UserError, match="outside the vocabulary"):
        engine(GQA).make_request(PROMPT, Sampling(logit_bias=((GQA.vocab, 1.0),)))
