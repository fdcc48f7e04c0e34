"""Dialogues whose answers are running totals: their numbers, their teacher, and episodes with a scripted assistant."""

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.client import ScriptedClient
from k2jax.tasks.characters.dataset import final_answer
from k2jax.tasks.characters.teacher import style_of
from k2jax.tasks.running_totals.dataset import Dialogue, dialogue_demonstrations
from tests.agents.test_rollout import BYTES, episode, same


def tasks(turns, split="train", **options):
    named = tuple(f"{name}={value}" for name, value in options.items())
    return load_tasks("running_totals", (f"turns={turns}", *named), split=split)


@settings(max_examples=10)
@given(turns=st.integers(1, 16), largest=st.sampled_from([1, 4, 9]), split=st.sampled_from(["train", "test"]))
def test_each_total_is_the_last_two_digits_of_what_was_said_until_then(turns, largest, split):
    for task in tasks(turns, split, largest=largest, count=5):
        said = task.metadata["lines"]
        assert len(said) == len(task.metadata["totals"]) == turns and task.instruction[0]["content"] == said[0]
        numbers = [int(number) for number in "".join(said).replace("=", "").split("+")]
        for end, total in enumerate(task.metadata["totals"], start=1):
            assert int(total) == sum(numbers[: end + 1]) % 100 and len(total) == 2
        assert max(numbers[1:]) <= largest
        assert task.domain == f"turns-{turns}" and task.metadata["answer"] == total


def test_the_teacher_carries_where_it_works_a_turn_out_and_adds_to_its_own_last_answer():
    shown = list(dialogue_demonstrations(tasks(8, largest=4, count=200), direct=0.7))
    turns, worked_turns, wrong = 0, 0, 0
    for dialogue in shown:
        total = dialogue["messages"][0]["content"][:2]
        said = [message["content"] for message in dialogue["messages"]]
        for line, answer in zip(said[::2], said[1::2], strict=True):
            right = f"{(int(total) + int(line[-2])) % 100:02}"
            ones, mark, answered = answer.rpartition(";")
            if mark:
                assert (int(ones), answered) == (int(total[1]) + int(line[-2]), right)
            else:
                assert answered == total[0] + right[1]
            turns, worked_turns, wrong = turns + 1, worked_turns + bool(mark), wrong + (answered != right)
            total = answered
    assert turns == 1600 and worked_turns / turns == pytest.approx(0.3, abs=0.04)
    assert wrong / turns == pytest.approx(0.7 * 0.2, abs=0.03)


def test_a_clean_teacher_is_always_right():
    some = list(tasks(4, count=50))
    for task, dialogue in zip(some, dialogue_demonstrations(some, direct=0.0), strict=True):
        answers = [message["content"] for message in dialogue["messages"][1::2]]
        assert all(style_of(answer) == "worked" for answer in answers)
        assert [answer.rpartition(";")[2] for answer in answers] == task.metadata["totals"]


def assistant(task, wrong_turn=None):
    """A client that answers each turn with its worked total, or wrongly in one turn."""
    (dialogue,) = dialogue_demonstrations([task], direct=0.0)
    right = dialogue["messages"][1::2]

    def reply(prompt, sampling):
        turn = sum(token == BYTES.eos for token in prompt)
        answer = right[turn]["content"]
        return [*BYTES.encode(answer + "0" if turn == wrong_turn else answer), BYTES.eos]

    return ScriptedClient(reply)


@pytest.mark.parametrize("turns", [1, 4])
def test_an_episode_has_its_turns_and_only_the_last_answer_is_judged(turns):
    (task,) = tasks(turns, count=1)
    (shown,) = dialogue_demonstrations([task], direct=0.0)
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
