"""Dialogues whose answers are running totals: their numbers by eval, and episodes with a scripted assistant."""

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.client import ScriptedClient
from k2jax.env.registry import load_tasks
from k2jax.env.tasks.characters import final_answer
from k2jax.env.tasks.dialogues import Dialogue, dialogue_demonstrations
from k2jax.errors import UserError
from tests.env.test_rollout import BYTES, episode, same


def tasks(turns, split="train", **options):
    named = tuple(f"{name}={value}" for name, value in options.items())
    return load_tasks("running_totals", (f"turns={turns}", *named), split=split)


@settings(max_examples=10)
@given(turns=st.integers(1, 16), digits=st.integers(2, 3), split=st.sampled_from(["train", "test"]))
def test_each_total_is_the_sum_of_what_was_said_until_then(turns, digits, split):
    for task in tasks(turns, split, digits=digits, count=5):
        said = task.metadata["lines"]
        assert len(said) == len(task.metadata["totals"]) == turns and task.instruction[0]["content"] == said[0]
        for end, total in enumerate(task.metadata["totals"], start=1):
            assert total == str(eval("".join(said[:end]).replace("=", "")))
        assert task.domain == f"turns-{turns}" and task.metadata["answer"] == total


def test_held_out_dialogues_are_none_of_training_and_a_set_that_is_too_large_is_refused():
    train, test = ({task.id for task in tasks(1, split, count=400)} for split in ("train", "test"))
    assert len(train) == len(test) == 400 and not train & test
    with pytest.raises(UserError, match=r"hardly more than \d+ distinct dialogues of 1 turns and 1 digits"):
        tasks(1, digits=1, count=500)
    with pytest.raises(UserError, match="must be positive"):
        tasks(0)


def assistant(task, wrong_turn=None):
    """A client that answers each turn with its total, or wrongly in one turn."""

    def reply(prompt, sampling):
        turn = sum(token == BYTES.eos for token in prompt)
        total = task.metadata["totals"][turn]
        return [*BYTES.encode("0" + total if turn == wrong_turn else total), BYTES.eos]

    return ScriptedClient(reply)


@pytest.mark.parametrize("turns", [1, 4])
def test_an_episode_has_its_turns_and_only_the_last_answer_is_judged(turns):
    (task,) = tasks(turns, count=1)
    (shown,) = dialogue_demonstrations([task])
    result = episode(assistant(task), task, Dialogue())
    assert result.status == "finished" and [node.message for node in result.nodes] == shown["messages"]
    assert [node.turn for node in result.nodes if node.mask.any()] == list(range(turns))
    assert final_answer(task, result.answer).value == 1
    for wrong in range(turns):
        judged = final_answer(task, episode(assistant(task, wrong), task, Dialogue()).answer)
        assert judged.value == float(wrong != turns - 1)


@pytest.mark.parametrize("cap", [1, 3])
def test_an_episode_that_pauses_is_rebuilt_and_goes_on(cap):
    (task,) = tasks(5, count=1)
    whole, pieces = episode(assistant(task), task, Dialogue()), None
    while pieces is None or pieces.status == "unfinished":
        pieces = episode(assistant(task), task, Dialogue(), trajectory=pieces, token_cap=cap)
    assert same(pieces, whole)
