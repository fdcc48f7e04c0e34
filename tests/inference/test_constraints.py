"""Answers under a grammar: which tokens are drawn, with which probabilities, whatever else happens to a request."""

import asyncio
import dataclasses
import json
import re

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from k2jax.client import Sampling, TokenConstraint
from k2jax.errors import UserError
from k2jax.inference import LockstepClient
from k2jax.inference.request import State
from k2jax.inference.sampler import Choice, sample
from k2jax.text.byte_level import byte_letters
from k2jax.text.constrained import Grammars, schema_rule
from k2jax.text.tokenizer import Tokenizer
from tests.inference.tiny import GQA, engine, finish, ids_of, oracle, prompts, with_few_pages

LETTERS = '0123456789{}":, abcdefghijklmnopqrstuvwxyz-.[]tf+E\\/_'
SPECIAL = ("<call>", "</call>", *(f"<{i}>" for i in range(6)))


def small_tokenizer():
    """A vocabulary of so few characters that the programs of other tests serve it."""
    vocab = {"[BOS]": 0, "[EOS]": 1} | {byte_letters()[ord(c)]: 2 + i for i, c in enumerate(dict.fromkeys(LETTERS))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["[BOS]", "[EOS]", *SPECIAL])
    return Tokenizer(backend.to_str())


TOKENIZER, MODEL = small_tokenizer(), GQA
CALL, CALL_END = TOKENIZER.special_id("<call>"), TOKENIZER.special_id("</call>")
GRAMMARS = Grammars(TOKENIZER, MODEL.vocab)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OBJECT = TokenConstraint("start: value\n" + schema_rule("value", SCHEMA, "schema"))
SAMPLED = Sampling(max_tokens=40, temperature=1.3, seed=5, stop_tokens=(TOKENIZER.eos,))
IN_OBJECT = dataclasses.replace(SAMPLED, constraint=OBJECT)
PROMPT = prompts(20)[0]


def constrained_engine(**sizes):
    run = engine(MODEL, **sizes)
    run.grammars = GRAMMARS
    return run


def text_of(request):
    return TOKENIZER.decode([token for token in request.tokens if token != TOKENIZER.eos])


def check_logprobs(request, allowed):
    """Masked log-probabilities are those of a softmax over the allowed tokens alone, and free ones over all."""
    at, temperature = len(request.prompt) - 1, request.sampling.temperature
    free = oracle(MODEL, request.ids, temperature)[at:-1]
    for row, token, masked, unmasked, ids in zip(
        free, request.tokens, request.logprobs, request.free_logprobs, allowed, strict=True
    ):
        assert token in ids
        assert abs(unmasked - row[token]) <= 1e-4
        assert abs(masked - (row[token] - np.log(np.exp(row[list(ids)]).sum()))) <= 1e-4


def test_random_weights_write_what_the_schema_describes():
    requests = constrained_engine().generate([PROMPT] * 8, [dataclasses.replace(IN_OBJECT, seed=i) for i in range(8)])
    assert {request.finish_reason for request in requests} <= {"stop", "length"}
    ended = [request for request in requests if request.finish_reason == "stop"]
    assert len(ended) >= 4
    for request in ended:
        assert request.tokens[-1] == TOKENIZER.eos and isinstance(json.loads(text_of(request))["n"], int)


def test_both_log_probabilities_equal_the_oracle_and_neighbours_do_not_matter():
    """Digits, which are known without the library: each allowed set is written down here."""
    digits = set(TOKENIZER.encode("0123456789"))
    asked = dataclasses.replace(SAMPLED, constraint=TokenConstraint("start: D\nD: /[0-9]{3}/\n"))
    run = constrained_engine()
    mine, plain = run.generate([PROMPT, PROMPT], [asked, SAMPLED])
    assert re.fullmatch("[0-9]{3}", text_of(mine)) and mine.finish_reason == "stop"
    check_logprobs(mine, [digits, digits, digits, {TOKENIZER.eos}])
    assert abs(mine.logprobs[-1]) < 1e-6 and mine.free_logprobs[-1] < -0.1
    assert not plain.free_logprobs
    assert ids_of([plain]) == ids_of(engine(MODEL).generate([PROMPT], SAMPLED))
    completion = mine.completion()
    np.testing.assert_array_equal(completion.free_logprobs, np.array(mine.free_logprobs, np.float32))
    assert plain.completion().free_logprobs is None


def test_a_grammar_that_allows_everything_changes_nothing():
    logits = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
    rows = [np.full(3, value, kind) for value, kind in zip((0.7, 1.0, 0.0), (np.float32,) * 3, strict=True)]
    choice = Choice(*rows, *(np.full(3, v, k) for v, k in ((0, np.int32), (7, np.uint32), (2, np.int32), (True, bool))))
    plain, masked = sample(logits, choice), sample(logits, choice, np.full((3, 3), ~np.uint32(0)))
    for a, b in zip(plain[:4], masked[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(masked.free_logprobs, masked.logprobs)
    any_token = dataclasses.replace(SAMPLED, temperature=0.8, constraint=TokenConstraint("start: <[*]>*\n"))
    plain, constrained = constrained_engine().generate(
        [PROMPT, PROMPT], [dataclasses.replace(any_token, constraint=None), any_token]
    )
    assert ids_of([plain]) == ids_of([constrained]) and len(plain.tokens) > 10
    np.testing.assert_allclose(constrained.free_logprobs, plain.logprobs, atol=1e-5)


def test_without_stop_tokens_an_answer_ends_where_its_grammar_does():
    asked = Sampling(max_tokens=10, constraint=TokenConstraint('start: "ab" | "cde"\n'))
    [request] = constrained_engine().generate([PROMPT], asked)
    assert text_of(request) in ("ab", "cde") and request.finish_reason == "stop"


def test_the_grammar_applies_behind_its_token_alone():
    """Several tokens of a program are drawn before it; those behind it are drawn anew, under their masks."""
    constraint = TokenConstraint(f'start: "x" /[0-9]/ <[{CALL_END}]>\n', CALL, (CALL_END,))
    found = 0
    for seed in range(24):
        asked = dataclasses.replace(SAMPLED, temperature=1.0, seed=seed, constraint=constraint)
        [request] = constrained_engine().generate([PROMPT], asked)
        ids = list(request.tokens)
        if CALL not in ids:
            assert CALL_END not in ids
            continue
        after = ids[ids.index(CALL) + 1 :]
        found += len(after) == 4
        assert CALL_END not in ids[: ids.index(CALL)]
        expected = [[TOKENIZER.encode("x")[0]], TOKENIZER.encode("0123456789"), [CALL_END], [TOKENIZER.eos]]
        assert all(token in allowed for token, allowed in zip(after, expected, strict=False))
    assert found >= 3


@pytest.mark.parametrize("how", ["resumed", "paused", "preempted", "prefix"])
def test_interruptions_change_nothing(how):
    asked = dataclasses.replace(IN_OBJECT, max_tokens=30)
    [whole] = constrained_engine().generate([PROMPT], asked)
    run = constrained_engine()
    if how == "prefix":
        run.generate([PROMPT], dataclasses.replace(SAMPLED, max_tokens=1))
    if how == "resumed":
        request = run.submit(PROMPT, asked, list(whole.tokens[:5]))
    else:
        request = run.submit(PROMPT, asked)
        while len(request.tokens) < 5:
            run.step()
    if how == "paused":
        run.pause(request)
        run.step()
        run.resume(request)
    if how == "preempted":
        run.release(weights=False)
    finish(run)
    assert ids_of([request]) == ids_of([whole]) and request.finish_reason == whole.finish_reason
    if how == "resumed":
        done = request.completion(whole.completion()._replace(finish="cancelled"))
        np.testing.assert_allclose(done.free_logprobs, whole.free_logprobs, atol=1e-5)


def test_lockstep_runs_repeat():
    async def answers():
        client = LockstepClient(constrained_engine())
        asked = [dataclasses.replace(IN_OBJECT, seed=seed) for seed in range(3)]
        return await client.gather(*(client.generate(PROMPT, each) for each in asked))

    first, second = asyncio.run(answers()), asyncio.run(answers())
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)


def test_an_answer_that_cannot_go_on_fails_alone(monkeypatch):
    run = constrained_engine()
    broken, healthy = run.submit(PROMPT, IN_OBJECT), run.submit(PROMPT, dataclasses.replace(IN_OBJECT, seed=8))
    while len(broken.tokens) < 3:
        run.step()
    broken.constraint._matcher.take(TOKENIZER.encode("z")[0])
    finish(run)
    assert broken.finish_reason == "cancelled" and "grammar" in broken.failure and "\n" not in broken.failure
    assert healthy.state == State.FINISHED and not healthy.failure


def test_a_constraint_needs_a_vocabulary_and_a_right_grammar():
    with pytest.raises(UserError, match=r"set engine\.grammars"):
        engine(MODEL).make_request(PROMPT, IN_OBJECT)
    run = constrained_engine()
    with pytest.raises(UserError, match="cannot be compiled") as refused:
        run.make_request(PROMPT, dataclasses.replace(SAMPLED, constraint=TokenConstraint("start: nothing\n")))
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="outside the vocabulary"):
        run.make_request(PROMPT, dataclasses.replace(IN_OBJECT, stop_tokens=(5000,)))


def test_few_pages_and_many_requests():
    run = with_few_pages(constrained_engine(slots=4), 6)
    asked = [dataclasses.replace(IN_OBJECT, seed=seed, max_tokens=30) for seed in range(6)]
    together = run.generate([PROMPT] * 6, asked)
    alone = constrained_engine().generate([PROMPT] * 6, asked)
    assert ids_of(together) == ids_of(alone)
