"""Who answers, by token ids, text or likelihoods; what becomes of long prompts, and of failures of machines."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.task import Task
from k2jax.client import PromptTooLongError, ScriptedClient, ServerFailedError
from k2jax.errors import UserError
from k2jax.evaluate.answerers import (
    ChatAnswerer,
    ChoiceAnswerer,
    ModelLikelihoods,
    TokenAnswerer,
    cut_in_the_middle,
    prompt_ids,
)
from k2jax.evaluate.scores import Price, compare, score_suite
from k2jax.evaluate.suite import checked_suite
from k2jax.evaluate.suite_run import AnswerLog, missing_answers, run_suite
from k2jax.text import byte_tokenizer
from k2jax.text.chat import configured_chat
from k2jax.trajectory import Reward
from tests.client.test_chat_endpoint import Server, error, said

TOKENIZER = byte_tokenizer()
CHAT = configured_chat(TOKENIZER, "plain")


def asked(text, name="t", **more):
    return Task(name, "d", ({"role": "user", "content": text},), "final_answer", **more)


def fields(**changes):
    return checked_suite(changes)


def in_text(suite, *answers, environments=None, **options):
    """A chat answerer over a server that gives these answers, and the server."""
    server = Server(*answers)
    endpoint = server.endpoint(attempts=1)
    return ChatAnswerer(suite, endpoint, environments or EnvironmentMaker(), options), server


def test_a_chat_endpoint_is_asked_in_openais_fields_and_its_tokens_are_counted():
    status, body = said("5;8", reasoning_content="hm")
    suite = fields(temperature=0.5, top_p=0.9, top_k=3, max_tokens=7, seed=1)
    answerer, server = in_text(suite, (status, body | {"usage": {"prompt_tokens": 9, "completion_tokens": 4}}), extra=1)
    given = [asyncio.run(answerer.answer(asked("3+5="), 2, sample)) for sample in (0, 1)]
    _, _, request = server.requests[0]
    assert request.pop("seed") != server.requests[1][2]["seed"]
    assert request == {
        "model": "grm", "messages": [{"role": "user", "content": "3+5="}], "max_tokens": 7, "temperature": 0.5,
        "top_p": 0.9, "top_k": 3, "extra": 1,
    }  # fmt: skip
    assert (given[0].trajectory.answer, given[0].trajectory.status) == ("5;8", "finished")
    assert given[0][1:] == (9, 4, None)
    greedy, server = in_text(fields(), said("5;8", finish="length"))
    assert asyncio.run(greedy.answer(asked("3+5="), 0, 0)).trajectory.status == "truncated"
    assert server.requests[0][2].keys() == {"model", "messages", "max_tokens", "temperature"}


def test_tools_are_declared_to_a_chat_endpoint_and_their_results_come_back():
    call = {"id": "1", "type": "function", "function": {"name": "calc", "arguments": '{"operation": "3*5"}'}}
    suite = fields(tools=("calculator",), steps=3)
    answerer, server = in_text(suite, said(None, tool_calls=[call]), said("15"))
    task = asked("3*5?", environment="tools", tools=("calculator",))
    given = asyncio.run(answerer.answer(task, 0, 0))
    first, second = (request for _, _, request in server.requests)
    assert first["tools"][0]["function"]["name"] == "calc"
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert "15" in second["messages"][2]["content"] and given.trajectory.answer == "15"
    assert given.trajectory.status == "finished"


def test_an_episode_ends_where_its_steps_are_used_up():
    call = {"id": "1", "type": "function", "function": {"name": "calc", "arguments": '{"operation": "3*5"}'}}
    answerer, server = in_text(fields(tools=("calculator",), steps=2), said(None, tool_calls=[call]))
    task = asked("3*5?", environment="tools", tools=("calculator",)).with_choices(
        SimpleNamespace(
            environment="", tools=(), scaffold="", verifier="", steps=2, critical_steps=0, total_steps=0,
            episode_tokens=0, episode_prompt_tokens=0, limits=(), thinking=True, judge_truncated=True, components=(),
        )
    )  # fmt: skip
    assert asyncio.run(answerer.answer(task, 0, 0)).trajectory.status == "truncated" and len(server.requests) == 2


def of_tokens(suite, reply):
    client = ScriptedClient(lambda prompt, sampling: reply)
    return TokenAnswerer(suite, client, CHAT, TOKENIZER, EnvironmentMaker()), client


def test_a_model_of_token_ids_gives_its_likelihood_and_other_samples_have_other_seeds():
    answerer, client = of_tokens(fields(temperature=0.7, max_tokens=9), [*TOKENIZER.encode("5;8"), CHAT.end])
    given = [asyncio.run(answerer.answer(asked("3+5="), 0, sample)) for sample in (0, 1)]
    prompt = prompt_ids(asked("3+5="), CHAT)
    tokens = [*TOKENIZER.encode("5;8"), CHAT.end]
    mean = np.mean([ScriptedClient.logprob([*prompt, *tokens[:i]], token) for i, token in enumerate(tokens)])
    assert given[0].trajectory.answer == "5;8" and given[0].likelihood == pytest.approx(mean)
    assert given[0][1:3] == (len(prompt), len(tokens))
    assert client.calls[0][1].seed != client.calls[1][1].seed and client.calls[0][1].temperature == 0.7


def test_a_long_prompt_is_cut_in_its_middle_or_wrong_unasked():
    text = "".join(f"{number} " for number in range(400))
    truncating, client = of_tokens(fields(context=100, max_tokens=20, overflow="truncate"), [CHAT.end])
    asyncio.run(truncating.answer(asked(text), 0, 0))
    seen = TOKENIZER.decode(list(client.calls[0][0]))
    assert len(client.calls[0][0]) == 80 and "0 1 2 3 " in seen and seen.rstrip().endswith("399")
    failing, client = of_tokens(fields(context=100, max_tokens=20), [CHAT.end])
    with pytest.raises(PromptTooLongError, match="leaves no room in a context of 100"):
        asyncio.run(failing.answer(asked(text), 0, 0))
    assert not client.calls
    with pytest.raises(UserError, match="may be longer than"):
        asyncio.run(
            in_text(fields(context=100, max_tokens=20, overflow="truncate"), said("x"))[0].answer(asked(text), 0, 0)
        )


@pytest.mark.parametrize("text", ["ä" * 300, "wörter " * 60, "\U0001d54f" * 90])
@pytest.mark.parametrize("room", [40, 41, 42, 77])
def test_a_prompt_that_was_cut_has_room_whatever_its_characters(text, room):
    cut = cut_in_the_middle(asked(text), room, CHAT, TOKENIZER)
    assert room - 8 <= len(prompt_ids(cut, CHAT)) <= room
    assert cut.instruction[0]["content"][:2] == text[:2]


def test_likelihoods_of_choices_are_sums_over_their_tokens():
    task = asked("Q\nAnswer:", metadata={"continuations": [" A", " BB"], "answer": "B"})
    client = ScriptedClient(lambda prompt, sampling: [])
    scores = ModelLikelihoods(fields(method="choices", template="text"), client, CHAT, TOKENIZER)
    logprobs, read = asyncio.run(scores(task))
    expected = []
    for text in (" A", " BB"):
        ids = TOKENIZER.encode_document("Q\nAnswer:" + text)
        start = len(TOKENIZER.encode_document("Q\nAnswer:"))
        expected.append(sum(ScriptedClient.logprob(ids[:place], ids[place]) for place in range(start, len(ids))))
    assert logprobs == pytest.approx(expected) and read == sum(
        len(TOKENIZER.encode_document("Q\nAnswer:" + t)) for t in (" A", " BB")
    )


@pytest.mark.parametrize(
    ("logprobs", "score", "normalised"),
    [([-1.0, -2.0], 0.0, 1.0), ([-3.0, -2.0], 1.0, 1.0), ([-2.0, -2.0], 0.5, 1.0), ([-1.0, -9.0], 0.0, 0.0)],
)
def test_the_most_likely_choice_counts_and_ties_are_shared(logprobs, score, normalised):
    async def scores(task):
        return logprobs, 3

    task = asked("Q", metadata={"continuations": [" A", " four"], "answer": "B"})
    given = asyncio.run(ChoiceAnswerer(scores).answer(task, 0, 0))
    assert (given.trajectory.reward.value, given.trajectory.reward.parts["normalised"]) == (score, normalised)
    with pytest.raises(UserError, match="has no continuations"):
        asyncio.run(ChoiceAnswerer(scores).answer(asked("Q"), 0, 0))


class Scorer:
    """Gives every episode the reward that its answer names."""

    async def judge(self, task, trajectory):
        trajectory.reward = Reward(float(trajectory.answer))


def ask(answerer, folder, tasks, samples=1):
    log = AnswerLog(folder)
    digests = {task.id: "0" for task in tasks}

    async def ask_all():
        options = {"log": log, "places": asyncio.Semaphore(2), "report": lambda answer: None}
        await run_suite(tasks, digests, samples, answerer, Scorer(), **options)

    try:
        asyncio.run(ask_all())
    finally:
        log.close()
    return log.answers


def test_machine_failures_are_tried_three_times_count_as_wrong_and_are_asked_again(tmp_path):
    tasks, tries = [asked(str(number), name=str(number)) for number in range(3)], []

    class Flaky:
        def __init__(self, failing):
            self.failing = failing

        async def answer(self, task, place, sample):
            tries.append(task.id)
            if tries.count(task.id) <= self.failing.get(task.id, 0):
                raise ServerFailedError("it is down")
            return await in_text(fields(), said("1"))[0].answer(task, place, sample)

    answers = ask(Flaky({"1": 99, "2": 3}), tmp_path, tasks)
    assert [tries.count(task.id) for task in tasks] == [1, 4, 4]
    assert (answers["1", 0].failure, answers["1", 0].score) == ("machine", 0.0)
    assert "it is down" in answers["1", 0].error and answers["1", 0].tries == 4
    assert (answers["2", 0].failure, answers["2", 0].score, answers["2", 0].tries) == ("", 1.0, 4)
    scores = score_suite(fields(), tasks, answers, Price(read=2e6, written=3e6))
    assert scores.scores["accuracy"].value == pytest.approx(2 / 3)
    assert scores.failures == {"machine": 1, "too long": 0, "cut": 0}
    assert [task.id for _, task, _ in missing_answers(tasks, 1, answers)] == ["1"]
    tries.clear()
    again = ask(Flaky({}), tmp_path, tasks)
    assert tries == ["1"] and again["1", 0].score == 1.0


def test_a_server_that_never_answers_ends_the_evaluation_in_one_line(tmp_path):
    answerer, server = in_text(fields(), error(500, "on fire"))
    tasks = [asked(str(number), name=str(number)) for number in range(50)]
    with pytest.raises(UserError, match=r"^the first 8 answers all failed, the last with .*on fire"):
        ask(answerer, tmp_path, tasks)
    assert len(server.requests) <= 4 * 10


def test_a_prompt_that_is_too_long_for_a_server_is_wrong_and_no_machines_failure(tmp_path):
    answerer, server = in_text(fields(), error(400, "too long", code="context_length_exceeded"))
    answers = ask(answerer, tmp_path, [asked("x")])
    assert answers["t", 0].failure == "too long" and len(server.requests) == 1
    assert not list(missing_answers([asked("x")], 1, answers))


def test_metrics_over_samples_are_those_of_their_definitions(tmp_path):
    replies = {"a": ["1", "1", "0", "0"], "b": ["0", "0", "0", "1"]}

    class Known:
        async def answer(self, task, place, sample):
            text = replies[task.id][sample]
            given = await in_text(fields(), said(text))[0].answer(task, place, sample)
            return given._replace(likelihood=[-4.0, -1.0, -2.0, -3.0][sample], tokens=10, prompt_tokens=5)

    tasks = [asked("x", name=name) for name in "ab"]
    suite = fields(samples=4, temperature=1.0, metrics=("pass", "pass_hat", "best"))
    scores = score_suite(suite, tasks, ask(Known(), tmp_path, tasks, 4), Price(1e6, 1e5))
    found = {name: score.value for name, score in scores.scores.items()}
    assert found["accuracy"] == pytest.approx(3 / 8)
    assert found["pass@2"] == pytest.approx((5 / 6 + 3 / 6) / 2) and found["pass@4"] == 1.0
    assert found["pass^2"] == pytest.approx((1 / 6 + 0) / 2) and found["pass^4"] == 0.0
    assert found["best@4"] == 0.5  # the second sample is the most likely one of each
    assert scores.tokens == {"read": 40, "written": 80, "mean": 10.0} and scores.cost == pytest.approx(48.0)
    record = json.loads(json.dumps(scores.record(), allow_nan=False))
    assert record["scores"]["pass@4"]["error"] == 0.0


def test_other_tasks_under_the_same_ids_are_not_compared(tmp_path):
    answers = ask(in_text(fields(), said("1"))[0], tmp_path, [asked("x")])
    [answer] = answers.values()
    other = {("t", 0): type(answer)(**{**vars(answer), "digest": "1"})}
    with pytest.raises(UserError, match="another task 't': its prompt or verifier differs"):
        compare(fields(), other, answers)
