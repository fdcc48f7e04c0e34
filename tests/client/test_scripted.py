"""Scripted replies end as a model's would, and their log-probabilities depend on the tokens alone."""

import asyncio

import numpy as np
import pytest

from k2jax.client import Client, Sampling, ScriptedClient, refuse_media
from k2jax.errors import UserError


def generate(reply, sampling=None, prompt=(1, 2), **options):
    client = ScriptedClient(lambda prompt, sampling: reply, version=4)
    return asyncio.run(client.generate(prompt, sampling or Sampling(), **options))


def test_a_reply_ends_at_a_stop_token_or_after_max_tokens():
    assert generate([5, 6, 7]).finish == "stop"
    stopped = generate([5, 6, 7], Sampling(stop_tokens=(6,)))
    assert (stopped.tokens.tolist(), stopped.finish) == ([5, 6], "stop")
    cut = generate([5, 6, 7], Sampling(max_tokens=2))
    assert (cut.tokens.tolist(), cut.finish, cut.versions.tolist()) == ([5, 6], "length", [4, 4])


def test_logprobs_depend_on_the_tokens_before_and_nothing_else():
    whole, other = generate([5, 6, 7]), generate([5, 8, 7])
    assert whole.logprobs.dtype == np.float32 and (whole.logprobs < 0).all()
    assert whole.logprobs[0] == other.logprobs[0] and whole.logprobs[2] != other.logprobs[2]
    assert generate([6, 7], prompt=(1, 2, 5)).logprobs.tolist() == whole.logprobs[1:].tolist()
    assert whole.logprobs[2] == ScriptedClient.logprob([1, 2, 5, 6], 7)


def test_a_resumed_reply_is_the_whole_one():
    seen = []
    half = generate([5, 6, 7], on_token=lambda token, logprob: seen.append((token, logprob)) or token == 6)
    assert (half.tokens.tolist(), half.finish) == ([5, 6], "stop")
    assert seen == list(zip(half.tokens.tolist(), half.logprobs.tolist(), strict=True))
    later = []
    whole = generate([5, 6, 7], resume=half, on_token=lambda token, logprob: later.append(token))
    for a, b in zip(whole[:3], generate([5, 6, 7])[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert later == [7]
    with pytest.raises(UserError, match="does not begin with"):
        generate([5, 5, 7], resume=half)


def test_given_tokens_are_scored_by_the_same_function_as_answers():
    client = ScriptedClient(lambda prompt, sampling: [5, 6, 7])
    answer = asyncio.run(client.generate([1, 2], Sampling(max_tokens=3)))
    np.testing.assert_array_equal(asyncio.run(client.score([1, 2, 5, 6, 7], 2)), answer.logprobs)
    for ids, start in (([1, 2], 2), ([1, 2], 0), ([], 1)):
        with pytest.raises(UserError, match="cannot be scored"):
            asyncio.run(client.score(ids, start))


def test_a_client_that_scores_nothing_or_sends_no_images_says_so_by_its_name():
    class Silent(Client):
        """Answers nothing."""

    with pytest.raises(UserError, match="Silent gives no log-probabilities of given tokens"):
        asyncio.run(Silent().score([1, 2], 1))
    with pytest.raises(UserError, match="Silent sends token ids alone, and the prompt has images"):
        refuse_media(Silent(), ["image"])
    assert not Silent().one_at_a_time
