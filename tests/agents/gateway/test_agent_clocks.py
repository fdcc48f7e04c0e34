"""An agent's own time, the episode's wall time and its budgets hold whatever the agent does with its requests."""

import asyncio
import time

import pytest

from k2jax.client import ScriptedClient
from tests.agents.gateway.repository import small_agent
from tests.agents.gateway.test_black_box import answers, episode

ASKING = """
import json, sys, threading, time, urllib.request
base, key, task = sys.argv[1:]
def ask(content):
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": content}]}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    try:
        urllib.request.urlopen(urllib.request.Request(base + "/v1/chat/completions", body, headers)).read()
    except Exception as error:
        return str(error)
def forever():
    while True: ask("q%f" % time.time())
"""
ALWAYS_ASKS = (
    ASKING
    + """
threading.Thread(target=forever, daemon=True).start()
began = time.time()
while time.time() - began < 40: sum(range(1000))
"""
)


class Slow(ScriptedClient):
    """Takes a while for each answer; ``seconds`` of 0 is for ever."""

    seconds = 0.5

    async def generate(self, *arguments, **options):
        await asyncio.sleep(self.seconds or 3600)
        return await super().generate(*arguments, **options)


class Never(Slow):
    seconds = 0


def asking_agent(source, turns):
    return small_agent(files={"${home}/agent.py": source.replace("$", "$$")}, turns=turns)


@pytest.mark.parametrize(
    ("client", "source", "turns", "more", "ended_by"),
    [
        (Slow, ALWAYS_ASKS, "all", "seconds=2", "time"),
        (Slow, ASKING + "forever()", "all", "seconds=60 wall=3", "wall time"),
        (ScriptedClient, ASKING + "for n in range(9): ask(str(n))", "tools", "side_calls=4",
         "itself, without a turn of its own"),
    ],
    ids=["a thread that always asks", "a thread that asks for ever", "side calls alone"],
)  # fmt: skip
def test_the_clocks_and_budgets_of_an_agent_hold(tmp_path, monkeypatch, client, source, turns, more, ended_by):
    monkeypatch.setattr("k2jax.agents.gateway.agent_episode.LAST_TOKEN_SECONDS", 0.5)
    began = time.monotonic()
    ended = asyncio.run(episode(client(answers("x")), asking_agent(source, turns), tmp_path, more=more))
    assert (ended.status, ended.metadata["agent"]["ended_by"]) == ("truncated", ended_by), ended.error
    assert time.monotonic() - began < 25
    answered = sum(request["tokens"] > 0 for request in ended.metadata["requests"])
    assert turns == "all" or (ended.metadata["counts"]["requests"], answered) == (9, 4)


def test_a_model_that_never_answers_is_a_failure_of_the_machine_and_ends_in_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr("k2jax.agents.gateway.agent_episode.LAST_TOKEN_SECONDS", 0.5)
    monkeypatch.setattr("k2jax.agents.episode.ATTEMPTS", 1)
    agent = asking_agent(ASKING + "ask('hi')", "all")
    ended = asyncio.run(episode(Never(answers("x")), agent, tmp_path, more="seconds=60 wall=1.5"))
    assert ended.status == "masked" and "has given the agent small no answer in its time" in ended.error
