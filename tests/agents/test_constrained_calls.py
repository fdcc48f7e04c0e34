"""Calls of tools under a constraint in episodes: what is asked for, and which tokens are trained on."""

import json

import numpy as np
import pytest

from k2jax.client import Client
from k2jax.errors import UserError
from k2jax.text.constrained import Grammars
from k2jax.trajectory import verify
from tests.agents.tool_episodes import compact_client, episode, kimi_client, task

CONSTRAINED = "chat constrained=true"
SECTION = "<|tool_calls_section_begin|>"


class Masked(Client):
    """Answers as another client whose log-probabilities a mask has changed: by much at every third token."""

    def __init__(self, client):
        self._client, self.asked = client, []

    async def generate(self, prompt, sampling, **options):
        self.asked.append(sampling)
        answer = await self._client.generate(prompt, sampling, **options)
        took = np.where(np.arange(len(answer.tokens)) % 3 == 0, 0.5, 0.001).astype(np.float32)
        return answer._replace(free_logprobs=answer.logprobs - took)


def say(text):
    called = "functions.calc" in text
    return ("30", []) if called else ("let me see", [("calc", {"operation": "18+12"})])


def test_calls_are_constrained_behind_the_token_that_opens_them_and_trained_on_where_the_mask_took_little():
    client, chat, tokenizer = kimi_client(say)
    masked = Masked(client)
    result = episode(masked, task(scaffold=CONSTRAINED), chat=chat, tokenizer=tokenizer, max_tokens=200)
    [first, second] = masked.asked
    assert first.constraint == second.constraint and first.constraint.after == tokenizer.special_id(SECTION)
    call = next(node for node in result.nodes if node.turn == 0)
    assert json.loads(call.message["tool_calls"][0]["function"]["arguments"]) == {"operation": "18+12"}
    behind = call.tokens.tolist()[call.tokens.tolist().index(first.constraint.after) + 1 :]
    matcher = Grammars(tokenizer, tokenizer.vocab_size).matcher(first.constraint.grammar)
    for token in behind[:-1]:  # but the stop token
        matcher.take(token)
    assert matcher.is_complete and not verify(result)
    for node in (node for node in result.nodes if node.turn >= 0):
        np.testing.assert_array_equal(node.mask, np.arange(len(node.tokens)) % 3 != 0)
        np.testing.assert_allclose(node.logprobs - node.free_logprobs, np.where(node.mask, 0.001, 0.5), atol=1e-5)


def test_without_the_option_or_tools_nothing_is_asked_for():
    for fields in ({}, {"scaffold": "chat"}):
        client, chat, tokenizer = kimi_client(say)
        episode(client, task(**fields), chat=chat, tokenizer=tokenizer, max_tokens=200)
        assert all(sampling.constraint is None for _, sampling in client.calls)


def test_a_format_whose_calls_no_grammar_describes_is_refused_in_one_line():
    with pytest.raises(UserError, match="no calls of tools that a grammar describes") as refused:
        episode(compact_client(lambda text: "3"), task(scaffold=CONSTRAINED))
    assert "\n" not in str(refused.value)
