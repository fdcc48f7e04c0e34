"""Assignments of one answer run at a time, and in lockstep with a real engine every run is the same bit for bit."""

import asyncio
import random

import pytest

from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.registry import toolsets
from k2jax.agents.roles import RoleClient
from k2jax.agents.spawning import Spawner
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.client import Client, Sampling
from k2jax.config import replace_keys
from k2jax.inference import LockstepClient
from k2jax.rl.episodes import Episodes
from k2jax.rl.groups import PromptGroup
from k2jax.trajectory.encoding import encode
from k2jax.trajectory.swarm import swarm_record
from tests.agents.swarm.orchestrated import orchestrated
from tests.agents.tool_episodes import BYTES, COMPACT, KEY, compact_client, episode, task
from tests.inference.tiny import GQA, engine
from tests.rl.tiny import tiny

COUNT = 32


class Meeting:
    """A tool that nobody gets an answer of before all have asked; then each after some turns of the event loop."""

    here = 0

    @classmethod
    async def meet(cls, turns: int) -> str:
        """Waits for all."""
        cls.here += 1
        for _ in range(9999):
            await asyncio.sleep(0)
            if cls.here == COUNT:
                break
        else:
            return f"only {cls.here} are here"
        for _ in range(turns):
            await asyncio.sleep(0)
        return f"after {turns}"


async def rest() -> str:
    """Takes its time, another one in each run."""
    await asyncio.sleep(0.005 * random.random())
    return "rested"


async def hang() -> str:
    """Never answers."""
    await asyncio.Event().wait()


def hanging():
    return FunctionTools([hang])


def meeting():
    return FunctionTools([Meeting.meet], concurrent=True)


def resting():
    return FunctionTools([rest])


@pytest.fixture(autouse=True)
def added(monkeypatch):
    for name in ("meeting", "resting", "hanging"):
        monkeypatch.setitem(toolsets.added, name, f"{__name__}:{name}")
    monkeypatch.setattr(Meeting, "here", 0)


@pytest.mark.parametrize("form", ["compact", "array"])
def test_32_assignments_of_one_answer_run_at_a_time_and_their_messages_keep_the_order(form):
    turns = random.Random(form).choices(range(40), k=COUNT)
    assignments = "\n".join(f"!a x {each}" for each in turns)

    def say(text):
        if text.startswith("<a+b"):
            return {0: "!n x", 1: assignments}.get(text.count("!"), "done")
        return f"!meet {text[1:].split('>')[0]}" if "!" not in text else text.split("<")[-1].removesuffix(">")

    client, asked = compact_client(say), []

    async def run(spawned):
        asked.append(spawned.path)
        return await run_episode(
            spawned.task, client, COMPACT, BYTES, ToolEnvironment(), key=KEY, seed=1, sampling=Sampling(max_tokens=60)
        )

    if form == "array":
        shown = messages_of_array(run, turns)
    else:
        tools = ("meeting", "swarm form=compact")
        result = episode(client, task(tools=tools), spawner=Spawner(run), max_tokens=999)
        shown = [node.message["content"] for node in result.nodes if node.message["role"] == "tool"][1:]
        record = swarm_record(result)
        assert (result.status, record.peak, record.finished, record.critical_steps) == ("finished", COUNT, COUNT, 5)
        assert [link["call"] for link in result.metadata["started"].values()] == list(range(COUNT))
    assert shown == [f"after {each}" for each in turns] and asked == [(number,) for number in range(COUNT)]


def messages_of_array(run, turns):
    prompts = [{"prompt": str(each)} for each in turns]
    calls = [("create_sub_agents", {"sub_agents": prompts})]
    ((text,),) = orchestrated(run, "swarm form=array", calls, others=("meeting",))
    return [each.split(": ", 1)[1] for each in text.split("\n\n")]


class Orchestrator(Client):
    """A scripted model beside a real engine, in lockstep with it."""

    def __init__(self, scripted, lockstep):
        self._scripted, self._lockstep = scripted, lockstep

    async def generate(self, prompt, sampling, **options):
        await asyncio.sleep(0.003 * random.random())
        return await self._scripted.generate(prompt, sampling, **options)

    async def gather(self, *coroutines):
        return await self._lockstep.gather(*coroutines)


def test_in_lockstep_three_runs_with_a_real_engine_are_equal_bit_for_bit():
    calls = ["!n x", "!n y", "!rest", "!a x one", "!a y two", "!rest", "!a x three"]

    def say(text):
        return "\n".join(calls) if "!" not in text else "!a y four" if text.count("!a") == 3 else "done"

    made = engine(replace_keys(GQA, {"vocab": BYTES.vocab_size}), max_length=128, page_size=32, slots=3)
    sampling = Sampling(max_tokens=9, temperature=1.0)

    def run():
        made.drop_prefixes()
        frozen = LockstepClient(made)
        policy = Orchestrator(compact_client(say), frozen)
        roles = {"helper": RoleClient(frozen, COMPACT, BYTES, sampling)}
        tools = ("resting", "swarm form=compact role=helper steps=1")
        config = tiny(**{"rl.tasks.low.max_tokens": 200})
        group = PromptGroup(0, (1, 0), DrawnTask("low", task(tools=tools)), [None] * 2)
        episodes = Episodes(config, policy, COMPACT, BYTES, None, roles=roles)
        episodes.is_verified = lambda group: False
        asyncio.run(episodes.run(1, [group]))
        return group.trajectories

    first, *others = [run() for _ in range(3)]
    for trajectories in others:
        assert [encode(each) for each in trajectories] == [encode(each) for each in first]
    for each in first:
        assert each.answer == "done" and len(each.spawned) == 4
        assert all(child.sampled_tokens > 0 for child in each.spawned.values())
    said = {child.nodes[1].tokens.tobytes() for each in first for child in each.spawned.values()}
    assert len(said) > 4, "each has random numbers of its own"


def test_a_sub_agent_that_hangs_in_lockstep_holds_nobody_up():
    def say(text):
        if text.startswith("<a+b"):
            return "!n x\n!a x hang" if "!" not in text else "done"
        if text.startswith("<sum"):
            return "!n x\n!a x 1+2" if "!" not in text else "done"
        return "!hang" if text == "<hang>" else "!calc 1+2" if "!" not in text else "3"

    model = replace_keys(GQA, {"vocab": BYTES.vocab_size})
    policy = Orchestrator(compact_client(say), LockstepClient(engine(model, max_length=128, page_size=32, slots=3)))
    hangs = task(tools=("hanging", "swarm form=compact seconds=0.2"))
    sums = task(tools=("calculator", "swarm form=compact"), instruction=({"role": "user", "content": "sum"},))
    groups = [
        PromptGroup(place, (1, place), DrawnTask("low", each), [None]) for place, each in enumerate((hangs, sums))
    ]
    episodes = Episodes(tiny(**{"rl.tasks.low.max_tokens": 200}), policy, COMPACT, BYTES, None)
    episodes.is_verified = lambda group: False
    asyncio.run(episodes.run(1, groups))
    ended = [group.trajectories[0] for group in groups]
    shown = [[node.message["content"] for node in each.nodes if node.message["role"] == "tool"] for each in ended]
    assert shown == [[".", "[failed] it took too long"], [".", "3"]] and {each.answer for each in ended} == {"done"}
