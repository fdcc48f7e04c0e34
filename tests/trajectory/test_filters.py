"""Rejection sampling: each filter by cases, and demonstrations that are the sampled ids, each trained once."""

import functools

from hypothesis import given, settings
import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.trajectory import Node, Reward, Trajectory, demonstrations, filter_named, filters, register_filter
from k2jax.trajectory.filters import correct_answer
from tests.trajectory.trees import call, chat, message, sampled, trajectories


def episode(*messages, status="finished", reward=1.0):
    """A chain of messages: the assistant's are sampled, the others observed."""
    trajectory = Trajectory("t", "d", (0, 0, 0), status=status, reward=None if reward is None else Reward(reward))
    for index, item in enumerate(messages):
        if item["role"] == "assistant":
            trajectory.add(sampled(index - 1, [index], turn=index, message=item))
        else:
            trajectory.add(Node.observed(index - 1, [index], item))
    return trajectory


def asks(*calls):
    return message("assistant", "", tool_calls=list(calls))


RESULTS = {
    True: [
        message("tool", "42"),
        message("tool", "no error"),
        message("user", "error: what does this mean?"),
        message("tool", ""),
        message("tool", None),
        message("tool", "3", is_error=False),
        message("tool", [{"type": "text", "text": "fine, "}, {"type": "text", "text": "error-free"}]),
    ],
    False: [
        message("tool", "error: no such file"),
        message("tool", "  ERROR 404"),
        message("tool", "Errors happened"),
        message("tool", "3", is_error=True),
        message("tool", "3", metadata={"is_error": True}),
        message("tool", [{"type": "text", "text": "Err"}, {"type": "text", "text": "or"}]),
    ],
}


@pytest.mark.parametrize("passes", [True, False])
def test_a_result_is_a_failure_as_documented(passes):
    for result in RESULTS[passes]:
        assert filter_named("no_failed_call")(episode(message("user", "?"), asks(), result)) is passes, result
    said = episode(message("assistant", "error: I cannot do this"))
    assert filter_named("no_failed_call")(said)
    invented = episode(message("user", "?"))
    invented.add(sampled(0, [1], message=message("tool", "error: the model plays the tool")))
    assert filter_named("no_failed_call")(invented)


DIFFERENT = [
    [call("add", '{"a": 1}'), call("add", '{"a": 2}')],
    [call("add", '{"a": 1}'), call("sub", '{"a": 1}')],
    [call("add", "{"), call("add", "{{")],
    [call("add", None), call("add", {})],
    [],
]
EQUAL = [
    [call("add", '{"a": 1, "b": 2}'), call("add", '{"b":2,"a":1}', 1)],
    [call("add", {"a": 1}), call("add", '{"a": 1}')],
    [call("add", "not JSON"), call("add", "not JSON")],
]


def test_a_query_is_a_duplicate_if_name_and_arguments_are_equal():
    check = filter_named("no_duplicate_query")
    for calls in DIFFERENT:
        assert check(episode(asks(*calls)))
    for first, second in EQUAL:
        assert not check(episode(asks(first, second)))
        assert not check(episode(asks(first), message("tool", "3"), asks(second)))
    rendered = episode(asks(EQUAL[0][0]))
    rendered.add(Node.observed(-1, [5], asks(EQUAL[0][0])))  # a context that was rendered again repeats no call
    assert check(rendered)


def test_finished_and_correct_are_as_documented():
    for status in ("unfinished", "finished", "truncated", "masked"):
        assert filter_named("finished")(episode(status=status)) is (status == "finished")
    for reward, passes in ((None, False), (0.0, False), (0.99, False), (1.0, True), (1.5, True)):
        assert filter_named("correct_answer")(episode(reward=reward)) is passes
    assert functools.partial(correct_answer, correct_reward=0.5)(episode(reward=0.5))


def test_demonstrations_are_what_passes_all_filters():
    bad = [chat(reward=0.0), episode(message("user", "?"), asks(), message("tool", "error"))]
    records = list(demonstrations([chat(), *bad]))
    about = {"task": "sum-3", "domain": "math", "key": [7, 2, 0], "reward": 1.0}
    assert records == [
        about | {"tokens": [*range(1, 10)], "mask": [token in (4, 5, 7, 8, 9) for token in range(1, 10)]},
        about | {"tokens": [1, 2, 3, 10], "mask": [False, False, False, True]},
    ]
    assert len(list(demonstrations([chat(), *bad], filters=()))) == 5
    with pytest.raises(UserError, match="did you mean 'finished'"):
        list(demonstrations([], ["finish"]))


@settings(max_examples=40)
@given(trajectory=trajectories())
def test_demonstrations_train_every_sampled_token_once_after_what_it_was_sampled_after(trajectory):
    wanted = []
    for index, node in enumerate(trajectory.nodes):
        path = trajectory.path_tokens(index).tolist()
        start = len(path) - len(node.tokens)
        wanted += [tuple(path[: start + place + 1]) for place in np.flatnonzero(node.mask).tolist()]
    got = []
    for record in demonstrations([trajectory], filters=()):
        assert len(record["tokens"]) == len(record["mask"]) and record["mask"][-1]
        assert all(type(token) is int for token in record["tokens"])
        got += [tuple(record["tokens"][: place + 1]) for place, trained in enumerate(record["mask"]) if trained]
    assert sorted(got) == sorted(wanted)


def test_filters_can_be_registered(monkeypatch):
    monkeypatch.setattr(filters, "_FILTERS", dict(filters._FILTERS))
    register_filter("short", lambda trajectory: trajectory.sampled_tokens < 3)
    assert list(demonstrations([chat()], ["short"])) == []
    with pytest.raises(UserError, match="already"):
        register_filter("finished", lambda trajectory: True)
