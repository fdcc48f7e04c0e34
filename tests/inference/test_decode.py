"""Several tokens of a program: those of as many programs of one token, and none behind the end of a request."""

import dataclasses

import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.inference import decode, shapes
from k2jax.inference import engine as engine_module
from k2jax.inference.request import State
from tests.inference.tiny import GQA, MODELS, check_against_oracle, engine, finish, prompts, with_few_pages

SAMPLED = Sampling(max_tokens=30, temperature=0.8, top_p=0.9, seed=3)


def counts(ran):
    """The numbers of tokens that programs were asked for, one list for each program."""
    asked = [run.given[0].count for run in ran if run.name == "decode"]
    return [[int(count) for count in counts if count] for counts in asked]


@pytest.mark.parametrize("name", ["mla-yarn", "gqa-bias-llama3"])
def test_one_token_at_a_time_gives_the_same_bits(name, monkeypatch):
    """Of four sequences of 17 to 37 tokens: programs for fewer rows or more pages may round in another way."""
    routed = name == "mla-yarn"
    asked = [dataclasses.replace(SAMPLED, max_tokens=12, top_logprobs=i, return_experts=routed) for i in range(4)]
    several = engine(MODELS[name]).generate(prompts(17, 20, 25, 22), asked)
    monkeypatch.setattr(engine_module, "STEPS", 1)
    alone = engine(MODELS[name]).generate(prompts(17, 20, 25, 22), asked)
    for a, b in zip(several, alone, strict=True):
        assert (a.ids, a.logprobs, a.top_logprobs) == (b.ids, b.logprobs, b.top_logprobs)
        if routed:
            np.testing.assert_array_equal(a.completion().experts, b.completion().experts)
        check_against_oracle(MODELS[name], a)


def test_a_program_ends_with_the_last_token_that_a_request_may_have(ran):
    asked = [dataclasses.replace(SAMPLED, max_tokens=tokens) for tokens in (1, 2, 6, 7)]
    requests = engine().generate(prompts(5, 6, 7, 8), asked)
    assert [len(request.tokens) for request in requests] == [1, 2, 6, 7]
    assert counts(ran) == [[1, decode.STEPS, decode.STEPS], [1, 2]]


def test_counters_tell_steps_of_the_programs_from_tokens_that_requests_keep(ran):
    """Two prompts and their first tokens in one pass; then 4 and 2 steps, of which one request takes 1 and the other 6.

    A third request goes on behind three tokens, and ends by its second new one: its program was asked for four.
    """
    run = engine()
    first = run.generate(prompts(5, 6), [dataclasses.replace(SAMPLED, max_tokens=tokens) for tokens in (2, 7)])
    stats = run.stats()
    assert counts(ran) == [[1, 4], [2]] and [len(request.tokens) for request in first] == [2, 7]
    assert (stats.decode_steps, stats.decode_tokens, stats.prefill_tokens) == (4 + 2, 1 + 6, 5 + 6)
    [prompt] = prompts(9, seed=1)
    [whole] = engine().generate([prompt], SAMPLED)
    ids = whole.tokens.tolist()
    request = run.submit(prompt, dataclasses.replace(SAMPLED, stop_tokens=(ids[5],)), ids[:3])
    finish(run)
    after = run.stats()
    assert len(set(ids[:6])) == 6 and request.tokens.tolist() == ids[:6]
    assert after.prefill_tokens - stats.prefill_tokens == 9 + 3
    assert (after.decode_steps - stats.decode_steps, after.decode_tokens - stats.decode_tokens) == (4, 2)


def test_what_comes_behind_an_end_is_dropped():
    """A stop token, the caller's own end, and a request that another one's callback cancels, pauses or resumes."""
    [whole] = engine().generate(prompts(9), SAMPLED)
    stop = next(i for i in range(1, 30) if i % decode.STEPS == 2 and whole.tokens[i] not in whole.tokens[:i])
    stopped = dataclasses.replace(SAMPLED, stop_tokens=(whole.tokens[stop],))
    run = engine()
    [request] = run.generate(prompts(9), stopped)
    assert (request.tokens.tolist(), request.finish_reason) == (whole.tokens.tolist()[: stop + 1], "stop")
    request = run.submit(prompts(9)[0], SAMPLED, on_token=lambda request: len(request.tokens) == 3)
    others = []

    def interferes(request):
        if len(request.tokens) == 4:
            run.cancel(others[0])
            run.pause(others[1])

    run.submit(prompts(9)[0], SAMPLED, on_token=interferes)
    others += [run.submit(prompts(9)[0], SAMPLED) for _ in range(2)]
    finish(run)
    assert request.tokens.tolist() == whole.tokens.tolist()[:3]
    assert others[0].finish_reason == "cancelled" and others[1].state == State.PAUSED
    assert [len(other.tokens) for other in others] == [3, 3]  # two behind the prompt's, and the other came first
    run.resume(others[1])
    finish(run)
    assert others[1].tokens.tolist() == whole.tokens.tolist()
    assert run.stats().pages_in_use == run.stats().running == 0


def test_a_prompt_with_chunks_left_waits_for_one_token(ran, monkeypatch):
    monkeypatch.setattr(shapes, "PREFILL_WIDTHS", (16,))
    run = engine()
    run.submit(prompts(9)[0], SAMPLED)
    run.step()
    run.submit(prompts(40)[0], SAMPLED)
    finish(run)
    assert counts(ran)[:3] == [[decode.STEPS], [1], [1]] and [decode.STEPS] * 2 in counts(ran)


def test_tokens_ahead_take_no_pages_of_others():
    """Three pages of sixteen tokens for two sequences of sixteen and nine: neither is preempted for what may come."""
    run = with_few_pages(engine(), 3)
    requests = run.generate(prompts(15, 9), dataclasses.replace(SAMPLED, max_tokens=8))
    assert run.stats().preemptions == 0
    assert [len(request.tokens) for request in requests] == [8, 8]
    for request in requests:
        check_against_oracle(GQA, request)
    longest = with_few_pages(engine(), 3)
    first, second = longest.generate(prompts(15, 9), dataclasses.replace(SAMPLED, max_tokens=20))
    assert longest.stats().preemptions == 1  # for a page that it needs now, a sequence takes one
    for request in (first, second):
        assert len(request.tokens) == 20
        check_against_oracle(GQA, request)
