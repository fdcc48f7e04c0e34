"""Wide questions: the oracle solves them in as many steps as there are hops, and rewards are shares of right keys."""

import asyncio
import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.registry import oracles, verifiers
from k2jax.agents.scaffolds.scripted import null_policy, play
from k2jax.agents.spawning import Spawner
from k2jax.client import ScriptedClient
from k2jax.data.chat_records import messages_and_tools
from k2jax.errors import UserError
from k2jax.tasks.lookups.dataset import KEYS, answer_of
from k2jax.tasks.lookups.demonstrations import lookup_demonstrations, styles_of
from tests.agents.tool_episodes import BYTES, COMPACT, episode

KINDS = "kinds=wide1+wide4+wide8"


def test_the_oracle_solves_every_question_and_a_null_policy_none():
    judge, oracle, makes = verifiers.get("lookups"), oracles.get("lookups"), EnvironmentMaker()
    for task in load_tasks("lookups", (KINDS, "count=12")):
        solved = asyncio.run(play(task, makes.make(task), oracle))
        assert judge(task, solved.answer).value == 1.0
        looked_up = [node.message["content"] for node in solved.nodes if node.message["role"] == "tool"]
        numbers = [text for text in looked_up if text.isdigit()]
        assert numbers == [pair[2:] for pair in answer_of(task).split()]
        assert judge(task, asyncio.run(play(task, makes.make(task), null_policy)).answer).value == 0.0
        if len(numbers) > 1:
            assert 2 * len(numbers) <= len(looked_up) <= 3 * len(numbers)


@given(st.lists(st.sampled_from(["right", "wrong", "none", "twice"]), min_size=4, max_size=4), st.randoms())
def test_a_reward_is_the_share_of_right_keys_of_an_answer_of_the_right_length(kinds, rng):
    (task,) = load_tasks("lookups", ("kinds=wide4", "count=1"))
    said = {"right": "{0}", "wrong": "{0}1", "none": "", "twice": "{0} {0}"}
    parts = " ".join(said[kind].format(pair) for kind, pair in zip(kinds, answer_of(task).split(), strict=True)).split()
    rng.shuffle(parts)
    stored = json.loads(json.dumps(task.metadata, sort_keys=True))
    reward = verifiers.get("lookups")(dataclasses.replace(task, metadata=stored), " ".join(parts))
    right = sum(kind in ("right", "twice") for kind in kinds)
    assert reward.value == (right / 4 if len(parts) == 4 else 0.0)
    assert reward.parts["item_f1"] == pytest.approx(2 * right / (len(parts) + 4))


def test_the_teacher_is_as_parallel_as_he_is_asked_to_be():
    tasks = load_tasks("lookups", ("count=400",))
    records = list(lookup_demonstrations(tasks, parallel=0.3, partial=0.1, idle=0.2, shown=0))
    counts = styles_of(records)
    assert 0.3 < counts["assigning"] / 400 < 0.5 and 0.12 < counts["idle"] / 400 < 0.28
    for task, record in zip(tasks, records, strict=True):
        assert record["messages"][-1]["content"] == answer_of(task)
    assert styles_of(lookup_demonstrations(tasks, parallel=0, partial=0, idle=0, shown=0)) == {"alone": 400}
    with pytest.raises(UserError, match="share"):
        list(lookup_demonstrations(tasks, parallel=0.9, partial=0.2))


def test_of_what_is_only_shown_the_answer_alone_is_trained_on():
    tasks = load_tasks("lookups", ("count=200",))
    records = list(lookup_demonstrations(tasks, parallel=0.2, partial=0, idle=0, shown=0.5))
    weights = [[message.get("weight", 1) for message in each["messages"] if message["role"] == "assistant"]
               for each in records if styles_of([each])["assigning"]]  # fmt: skip
    assert {tuple(each) for each in weights} == {(0, 1), (1, 1)}
    assert 0.4 < sum(each[0] == 0 for each in weights) / 200 < 0.6


def test_demonstrations_show_what_the_tools_of_a_swarm_show():
    tasks = [
        dataclasses.replace(task, tools=("store", "swarm form=compact steps=5"))
        for task in load_tasks("lookups", ("kinds=wide3", "count=20"))
    ]
    records = list(lookup_demonstrations(tasks, parallel=0.4, partial=0.3, idle=0.3, shown=0))
    assert styles_of(records).keys() == {"assigning", "idle"}
    for task, record in zip(tasks, records, strict=True):
        messages, _ = messages_and_tools(record)
        said = iter([COMPACT.render(message) for message in messages if message["role"] == "assistant"])

        async def look_up(spawned):
            key, metadata = spawned.task.instruction[-1]["content"].rstrip("="), spawned.task.metadata
            known = {**metadata, KEYS: [key]}
            asked = dataclasses.replace(spawned.task, metadata=known)
            return await play(asked, EnvironmentMaker().make(asked), oracles.get("lookups"))

        client = ScriptedClient(lambda prompt, sampling, said=said: [*next(said), BYTES.eos])
        ended = episode(client, task, spawner=Spawner(look_up), max_tokens=200)
        shown = [(node.message["role"], node.message.get("content")) for node in ended.nodes]
        assert shown == [(message["role"], message.get("content")) for message in messages]
        assert verifiers.get("lookups")(task, ended.answer).value == 1.0
