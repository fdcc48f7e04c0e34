"""Episodes as token trees: budgets, pauses, resumption with the same random numbers, and rebuilt environments."""

import asyncio
import copy
import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents import Budget, Observation, Step, Task
from k2jax.agents.environments.single_turn import SingleTurn
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey, turn_seed
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.client import Completion, PromptTooLongError, Sampling, ScriptedClient
from k2jax.errors import UserError
from k2jax.text import ChatBuilder, byte_tokenizer, chat_format, configured_chat
from tests.text import kimi

BYTES = byte_tokenizer()
PLAIN = configured_chat(BYTES, "plain")
TASK = Task("t", "add1", ({"role": "user", "content": "1+2="},), "final_answer")
KEY = EpisodeKey("train", 3, 1, 4)


def episode(client, task=TASK, environment=None, *, chat=PLAIN, tokenizer=BYTES, temperature=0.5, **options):
    environment = SingleTurn() if environment is None else environment
    sampling = Sampling(max_tokens=options.pop("max_tokens", 20), temperature=temperature)
    return asyncio.run(
        run_episode(task, client, chat, tokenizer, environment, key=KEY, seed=7, sampling=sampling, **options)
    )


def reply(text: str):
    return lambda prompt, sampling: [*BYTES.encode(text), BYTES.eos]


def same(one, other) -> bool:
    arrays = ("tokens", "mask", "logprobs", "versions")
    return (one.status, len(one.nodes)) == (other.status, len(other.nodes)) and all(
        (a.parent, a.turn, a.finish, a.message) == (b.parent, b.turn, b.finish, b.message)
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
        for a, b in zip(one.nodes, other.nodes, strict=True)
    )


def test_an_answer_is_a_child_of_its_prompt_with_what_the_client_reported():
    client = ScriptedClient(reply("3"), version=5)
    result = episode(client)
    prompt, answer = result.nodes
    assert (result.status, result.answer, result.key, result.domain) == ("finished", "3", KEY.place, "add1")
    assert prompt.tokens.tolist() == [BYTES.bos, *BYTES.encode("1+2=")] and not prompt.mask.any()
    assert answer.tokens.tolist() == [*BYTES.encode("3"), BYTES.eos] and answer.mask.all()
    assert (answer.versions == 5).all() and (answer.logprobs < 0).all() and answer.temperature == 0.5
    assert (answer.parent, answer.turn, answer.finish) == (0, 0, "stop")
    assert answer.message == {"role": "assistant", "content": "3"}
    (prompt_ids, sampling) = client.calls[0]
    assert list(prompt_ids) == prompt.tokens.tolist() and sampling.stop_tokens == (BYTES.eos,)


def test_random_numbers_depend_on_seed_key_and_turn_alone():
    clients = [ScriptedClient(reply("3")) for _ in range(2)]
    for client in clients:
        episode(client)
    assert clients[0].calls[0][1].seed == clients[1].calls[0][1].seed == turn_seed(7, KEY, 0)
    others = {
        turn_seed(7, KEY, 1),
        turn_seed(8, KEY, 0),
        turn_seed(7, EpisodeKey("train", 3, 1, 5), 0),
        turn_seed(7, KEY, 0),
    }
    assert len(others) == 4 and all(0 <= seed < 2**32 for seed in others)


@given(st.text("0123456789", min_size=1, max_size=30), st.integers(1, 9), st.integers(1, 40))
def test_an_episode_in_pieces_equals_an_episode_at_once(text, cap, max_tokens):
    whole = episode(ScriptedClient(reply(text)), max_tokens=max_tokens)
    assert whole.status == ("finished" if len(text) < max_tokens else "truncated")
    pieces, calls, client = None, 0, ScriptedClient(reply(text))
    while pieces is None or pieces.status == "unfinished":
        before = 0 if pieces is None else pieces.sampled_tokens
        pieces = episode(client, trajectory=pieces, token_cap=cap, max_tokens=max_tokens)
        assert pieces.sampled_tokens - before <= cap
        calls += 1
    assert same(whole, pieces)
    assert calls == max(1, -(-whole.sampled_tokens // cap))
    assert len({sampling.seed for _, sampling in client.calls}) == 1


class Impatient:
    """A client that ends a request after one more token, as a full engine does, under ever newer weights."""

    def __init__(self, text):
        self._ids = [*BYTES.encode(text), BYTES.eos]
        self.version = 0

    async def generate(self, prompt, sampling, *, resume=None, on_token=None):
        self.version += 1
        self.temperature = sampling.temperature
        known = 0 if resume is None else len(resume.tokens)
        old = np.zeros(0, np.int64) if resume is None else resume.versions
        ids = self._ids[: known + 1]
        finish = "stop" if len(ids) == len(self._ids) else "cancelled"
        versions = np.append(old, self.version)
        count = len(prompt) + len(ids) - 1
        experts = np.full((count, 2, 1), self.version, np.int16)
        if resume is not None and resume.experts is not None:
            assert len(resume.experts) == count - 1  # this client routes what it knows anew, as a recomputation may
        return Completion(np.array(ids, np.int32), -np.ones(len(ids), np.float32), versions, finish, experts)


def test_a_cancelled_answer_goes_on_and_its_tokens_keep_their_versions_routes_and_temperature():
    client, result = Impatient("34"), None
    for count in range(3):
        result = episode(client, trajectory=result, temperature=0.5 - count / 10)
        assert result.nodes[1].temperature == client.temperature == 0.5
        assert result.nodes[1].versions.tolist() == list(range(1, count + 2))
    assert (result.status, result.answer, len(result.nodes)) == ("finished", "34", 2)
    assert (result.nodes[0].experts == 1).all() and result.nodes[0].experts.dtype == np.int16
    assert result.nodes[1].experts[:, 0, 0].tolist() == [2, 3, -1]


def test_the_budget_of_the_task_truncates_the_episode():
    short = dataclasses.replace(TASK, budget=Budget(tokens=2))
    result = episode(ScriptedClient(reply("333")), short)
    assert (result.status, result.sampled_tokens, result.answer) == ("truncated", 2, "33")
    none = dataclasses.replace(TASK, budget=Budget(steps=0))
    assert episode(ScriptedClient(reply("3")), none).status == "truncated"


def test_an_engine_whose_longest_sequence_is_reached_truncates_instead_of_pausing():
    class Full:
        async def generate(self, prompt, sampling, *, resume=None, on_token=None):
            return Completion(np.array([51, 51], np.int32), np.zeros(2, np.float32), np.zeros(2, np.int64), "length")

    assert episode(Full(), token_cap=5).status == "truncated"


def test_a_conversation_that_outgrows_the_longest_sequence_is_truncated_and_a_task_that_does_not_fit_is_refused():
    """The longest sequence has 40 tokens. Turns begin after 5, 23 and 41: an answer takes 2 and what is shown 16."""

    def full(prompt, sampling):
        if len(prompt) >= 40:
            raise PromptTooLongError("too long")
        return [*BYTES.encode("3"), BYTES.eos]

    result = episode(ScriptedClient(full), environment=Chatty(), chat=configured_chat(BYTES, "compact"))
    assert (result.status, result.sampled_tokens) == ("truncated", 4)
    assert len(result.path_tokens(result.leaves()[0])) > 40
    with pytest.raises(PromptTooLongError):
        episode(ScriptedClient(full), dataclasses.replace(TASK, instruction=({"role": "user", "content": "1" * 40},)))


class Chatty:
    """Shows 15 bytes for every answer, and never ends."""

    async def reset(self, task, seed):
        return Observation(task.instruction)

    async def step(self, action):
        return Step(Observation(({"role": "user", "content": "." * 15},)))

    async def close(self):
        pass


def test_special_tokens_within_an_answer_are_visible_to_the_verifier():
    ids = [*BYTES.encode("1"), BYTES.bos, *BYTES.encode("2"), BYTES.eos]
    assert episode(ScriptedClient(lambda prompt, sampling: ids)).answer == f"1{BYTES.special_name(BYTES.bos)}2"


class Guessing:
    """Counts down from what the seed says; the episode ends at zero. It may fail at a step, or lie after a reset."""

    def __init__(self, failures=(), lie=False):
        self.log, self._failures, self._lie, self._resets = [], list(failures), lie, 0

    async def reset(self, task, seed):
        self._resets += 1
        self._left = 2
        self._salt = seed + (self._resets > 1 and self._lie)
        self.log.append("reset")
        return Observation((*task.instruction, {"role": "user", "content": f"seed {self._salt}"}))

    async def step(self, action):
        self.log.append(action["content"])
        if self._failures and self._failures.pop(0):
            raise EnvironmentFailedError("it fell over")
        self._left -= 1
        return Step(
            Observation(({"role": "user", "content": f"{self._left} left {self._salt}"},)), terminated=not self._left
        )

    async def close(self):
        self.log.append("close")


def talk(environment, **options):
    """An episode of two turns in Kimi K2's format, whose answers number themselves."""
    tokenizer = kimi.tokenizer()
    chat = chat_format(tokenizer)

    def count(prompt, sampling):
        turn = list(prompt).count(tokenizer.special_id("<|im_assistant|>"))
        return [*tokenizer.encode(f"answer {turn}"), chat.end]

    return episode(ScriptedClient(count), environment=environment, chat=chat, tokenizer=tokenizer, **options)


def test_a_conversation_of_several_turns_has_the_tokens_of_the_chat_format():
    environment, tokenizer = Guessing(), kimi.tokenizer()
    result = talk(environment)
    builder = ChatBuilder(chat_format(tokenizer))
    for node in result.nodes:
        builder.add(node.message)
    assert result.path_tokens(len(result.nodes) - 1).tolist() == builder.tokens
    assert [node.turn for node in result.nodes] == [-1, -1, 0, -1, 1]
    assert environment.log == ["reset", "answer 1", "answer 2", "close"]
    assert result.status == "finished" and result.leaves() == [4]


@given(st.integers(1, 7))
def test_an_episode_that_pauses_between_turns_is_rebuilt_by_replay(cap):
    whole, pieces = talk(Guessing()), None
    while pieces is None or pieces.status == "unfinished":
        pieces = talk(Guessing(), trajectory=pieces, token_cap=cap)
    assert same(whole, pieces)


def test_a_failed_environment_is_rebuilt_and_the_episode_is_the_same():
    environment = Guessing(failures=[False, True])
    assert same(talk(environment), talk(Guessing()))
    assert environment.log == ["reset", "answer 1", "answer 2", "reset", "answer 1", "answer 2", "close"]


def test_an_episode_whose_environment_fails_again_and_again_is_masked_and_not_scored():
    environment = Guessing(failures=[True] * 9)
    result = talk(environment)
    assert (result.status, result.reward) == ("masked", None)
    assert result.error == "EnvironmentFailedError: it fell over" and environment.log.count("reset") == 3


def test_an_environment_that_shows_something_else_on_replay_masks_the_episode():
    result = talk(Guessing(failures=[True], lie=True))
    assert result.status == "masked" and result.error.startswith("ReplayError")


def test_the_environment_is_closed_when_the_client_refuses():
    def refuse(prompt, sampling):
        raise UserError("no")

    environment = Guessing()
    with pytest.raises(UserError, match="no"):
        episode(
            ScriptedClient(refuse),
            environment=environment,
            chat=chat_format(kimi.tokenizer()),
            tokenizer=kimi.tokenizer(),
        )
    assert environment.log[-1] == "close"


def test_an_ended_episode_and_missing_tools_are_refused():
    done = episode(ScriptedClient(reply("3")))
    with pytest.raises(ValueError, match="cannot go on"):
        episode(ScriptedClient(reply("3")), trajectory=copy.deepcopy(done))
    with pytest.raises(UserError, match="needs the toolset 'shell'"):
        episode(ScriptedClient(reply("3")), dataclasses.replace(TASK, tools=("shell",)))
    with pytest.raises(UserError, match="no scaffold 'swarm'"):
        episode(ScriptedClient(reply("3")), dataclasses.replace(TASK, scaffold="swarm"))
