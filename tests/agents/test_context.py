"""Management of contexts: every sampled token is in the tree once, after the context that it was sampled in."""

import asyncio
from collections import Counter
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents import Budget
from k2jax.agents.context import ASK, HIDDEN, SUMMARY
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import is_answer
from k2jax.client import ScriptedClient
from k2jax.errors import UserError
from k2jax.text import ChatBuilder
from k2jax.trajectory import verify
from tests.agents.tool_episodes import compact_client, episode, kimi_client, task

METHODS = ("hide_tool_result", "discard_all", "summary")


class Recording:
    """Passes calls on and keeps what every completed request was asked and answered."""

    def __init__(self, client):
        self._client, self.answers = client, []

    async def generate(self, prompt, sampling, **options):
        completion = await self._client.generate(prompt, sampling, **options)
        self.answers.append((tuple(prompt), completion.tokens.tolist()))
        return completion


def scaffold(method, tokens):
    return f"chat context={method} tokens={tokens}"


def chatter(rounds):
    """A model that calls tools so many times, numbering its calls, then answers; asked for a summary, it writes one."""
    state = {"calls": 0}

    def say(text):
        if text.rpartition("<")[2].startswith("Your context is full"):
            return f"so far {state['calls']}"
        if state["calls"] == rounds:
            return "done"
        state["calls"] += 1
        return f"n{state['calls']}\n!calc {state['calls']}+1000" + "\n!get a" * (state["calls"] % 2)

    return Recording(compact_client(say))


def managed_task(method, tokens):
    return task(scaffold=scaffold(method, tokens), metadata={"user_turns": ["go on"]}, budget=Budget(steps=40))


def run(method, tokens, rounds, **options):
    client = chatter(rounds)
    return client, episode(client, managed_task(method, tokens), **options)


@settings(max_examples=20)
@given(st.sampled_from(METHODS), st.integers(20, 200), st.integers(0, 8))
def test_every_sampled_token_is_in_the_tree_exactly_once_after_the_context_that_it_was_sampled_in(
    method, tokens, rounds
):
    client, result = run(method, tokens, rounds)
    assert verify(result) == []
    sampled = [node for node in result.nodes if node.mask.any()]
    assert [node.tokens.tolist() for node in sampled] == [tokens for _, tokens in client.answers]
    assert [tuple(result.path_tokens(node.parent).tolist()) for node in sampled] == [p for p, _ in client.answers]
    assert all(node.mask.all() for node in sampled) and [node.turn for node in sampled] == list(range(len(sampled)))
    assert result.sampled_tokens == sum(len(tokens) for _, tokens in client.answers)


def contexts(result):
    """The messages before each sampled message."""
    return [
        [result.nodes[index].message for index in result.path(node.parent)] for node in result.nodes if node.mask.any()
    ]


@settings(max_examples=20)
@given(st.integers(30, 150), st.integers(2, 8))
def test_hidden_results_are_those_before_the_last_round_and_calls_stay(tokens, rounds):
    _, result = run("hide_tool_result", tokens, rounds)
    said = [node.message for node in result.nodes if node.mask.any()]
    for number, before in enumerate(contexts(result)):
        assert [message for message in before if message["role"] == "assistant"] == said[:number]
        last = max((i for i, message in enumerate(before) if message["role"] == "assistant"), default=0)
        assert all(message["content"] != HIDDEN for message in before[last:])
    assert Counter(node.message["content"] == HIDDEN for node in result.nodes)[True] or tokens > 60


def test_hiding_shares_the_path_up_to_the_first_hidden_result():
    _, result = run("hide_tool_result", 50, 3)
    (first, *_) = result.metadata["context"]
    assert result.nodes[first["begin"]].parent == 1 and result.nodes[first["begin"]].message["content"] == HIDDEN
    copies = {int(copy): original for copy, original in result.metadata["copies"].items()}
    for copy, original in copies.items():
        assert np.array_equal(result.nodes[copy].tokens, result.nodes[original].tokens)
        assert not result.nodes[copy].mask.any() and result.nodes[original].mask.all() and is_answer(result, copy)


@settings(max_examples=15)
@given(st.integers(30, 150), st.integers(2, 8))
def test_discarding_leaves_what_the_user_said_and_a_context_within_the_threshold(tokens, rounds):
    _, result = run("discard_all", tokens, rounds)
    changed = {event["head"] for event in result.metadata.get("context", ())}
    for node in (node for node in result.nodes if node.mask.any() and node.parent in changed):
        roles = [result.nodes[index].message["role"] for index in result.path(node.parent)]
        assert set(roles) == {"user"}
    assert all(len(result.path_tokens(node.parent)) <= tokens for node in result.nodes if node.mask.any())


def test_a_context_that_is_discarded_goes_on_after_the_very_prompt():
    _, result = run("discard_all", 40, 4)
    assert result.metadata["context"][0]["head"] == 0 and sum(node.parent == 0 for node in result.nodes) > 1


def test_a_summary_is_the_models_own_and_replaces_all_but_the_instruction():
    _, result = run("summary", 100, 9)
    events = result.metadata["context"]
    assert len(events) >= 2
    for event in events:
        added = range(event["begin"], event["end"])
        request = next(index for index in added if result.nodes[index].message["content"] == ASK)
        summary = result.nodes[request + 1]
        assert summary.parent == request and summary.mask.all()
        new = [result.nodes[index].message["content"] for index in result.path(event["head"])]
        assert new == ["a+b=", SUMMARY + summary.message["content"]]


def shape(result):
    return result.status, result.metadata, [(n.parent, n.turn, n.tokens.tolist()) for n in result.nodes]


def in_pieces(client, method, tokens, caps):
    """The episode of a client that has answered, in pieces of some numbers of tokens, with the same answers."""
    answers, pieces, said = iter([answer for _, answer in client.answers]), None, {}

    def replay(prompt, sampling):
        if prompt not in said or sampling.seed != said[prompt][0]:
            said[prompt] = (sampling.seed, next(answers))
        return said[prompt][1]

    while pieces is None or pieces.status == "unfinished":
        again = ScriptedClient(replay)
        pieces = episode(again, managed_task(method, tokens), trajectory=pieces, token_cap=next(caps))
    return pieces


@settings(max_examples=10)
@given(st.sampled_from(METHODS), st.integers(30, 160), st.integers(1, 4), st.integers(4, 60))
def test_an_episode_whose_context_is_managed_may_pause_anywhere(method, tokens, rounds, cap):
    """The scripted model counts its calls, so that its answers are those of the whole episode, piece by piece."""
    client, whole = run(method, tokens, rounds)
    assert shape(in_pieces(client, method, tokens, itertools.repeat(cap))) == shape(whole)


@pytest.mark.parametrize(("method", "tokens"), [("hide_tool_result", 50), ("discard_all", 40), ("summary", 100)])
def test_an_episode_may_pause_between_a_new_context_and_its_first_token(method, tokens):
    client, whole = run(method, tokens, 4)
    assert whole.metadata["context"]
    for cap in itertools.accumulate(len(answer) for _, answer in client.answers):
        assert shape(in_pieces(client, method, tokens, itertools.chain([cap], itertools.repeat(0)))) == shape(whole)


def test_without_management_an_overflow_is_a_failure():
    client = chatter(9)
    result = episode(client, task(scaffold=scaffold("none", 60)))
    assert (result.status, "context" in result.metadata) == ("truncated", False)
    assert all(len(prompt) <= 60 for prompt, _ in client.answers)


def test_results_are_hidden_in_kimis_format_without_changing_a_sampled_token():
    def say(text):
        count = text.count("<|tool_call_begin|>")
        return ("done", []) if count == 3 else (f"step {count}", [("calc", {"operation": f"{count}+1"})])

    client, chat, tokenizer = kimi_client(say)
    recording = Recording(client)
    managed = task(scaffold=scaffold("hide_tool_result", 300), budget=Budget(tokens=2000))
    result = episode(recording, managed, chat=chat, tokenizer=tokenizer, max_tokens=200)
    assert result.status == "finished" and result.metadata["context"] and verify(result) == []
    sampled = [node for node in result.nodes if node.mask.any()]
    assert [tuple(result.path_tokens(node.parent).tolist()) for node in sampled] == [p for p, _ in recording.answers]
    final = [result.nodes[index].message for index in result.path(len(result.nodes) - 1)]
    assert [m["content"] for m in final if m["role"] == "tool"].count(HIDDEN) == 2
    tools = [tool for tool in result.path_tokens(len(result.nodes) - 1).tolist() if tool == chat.end]
    assert len(tools) == len([*final]) + 2  # of the declaration, and of the default system message


@pytest.mark.parametrize(("method", "tokens"), [("hide_tool_result", 780), ("discard_all", 780), ("summary", 820)])
def test_a_managed_context_has_the_tokens_of_the_conversation_rendered_anew(method, tokens):
    """The scripted model's messages are rendered ones, so that its ids are those of its messages."""
    left = itertools.count()

    def say(text):
        number = next(left)
        last = number >= 8 or ASK in text.rpartition("<|im_user|>")[2]
        return (f"step {number}", [] if last else [("get", {"key": "a"})])

    client, chat, tokenizer = kimi_client(say)
    managed = task(scaffold=scaffold(method, tokens), budget=Budget(steps=20))
    result = episode(client, managed, chat=chat, tokenizer=tokenizer, max_tokens=200)
    assert result.status == "finished" and result.metadata["context"]
    environment = ToolEnvironment()
    asyncio.run(environment.reset(managed, 0))
    for node in (node for node in result.nodes if node.mask.any()):
        builder = ChatBuilder(chat, environment.tools)
        for index in result.path(node.parent):
            builder.add(result.nodes[index].message)
        builder.open_assistant()
        assert builder.tokens == result.path_tokens(node.parent).tolist()


def test_a_method_without_a_threshold_or_of_no_name_is_refused():
    with pytest.raises(UserError, match="needs a threshold"):
        episode(chatter(1), task(scaffold="chat context=summary"))
    with pytest.raises(UserError, match="did you mean 'discard_all'"):
        episode(chatter(1), task(scaffold="chat context=discard tokens=5"))
    with pytest.raises(UserError, match="neither a budget of steps nor of tokens"):
        episode(chatter(1), task(scaffold="chat context=discard_all tokens=5"))
