"""Planted faults of agents, users and tools, which a judge finds in the transcript and the world."""

import asyncio
from collections import Counter
import dataclasses
import random

import pytest

from k2jax.agents.environment import OUTCOME
from k2jax.agents.scaffolds.scripted import called, play, said
from k2jax.errors import UserError
from k2jax.synthesize.questions import ModelQuestion
from k2jax.synthesize.settings import AskedModelConfig, SynthesisConfig, ToolUseConfig, resolved, synthesis
from k2jax.synthesize.tool_use.exports import judge_agreement
from k2jax.synthesize.tool_use.planted_faults import (
    ClosedUserEnvironment,
    FaultRates,
    mistake_of,
    planted_fault,
    with_broken_tool,
)
from k2jax.synthesize.tool_use.programs import tool_use_programs
from k2jax.synthesize.tool_use.trajectory_judge import BLAMED, blamed, evidence, exact_report
from k2jax.tasks.worlds.dataset import world_task
from k2jax.tasks.worlds.dialogue import USER, WorldEnvironment
from k2jax.tasks.worlds.failures import FailureRates
from k2jax.tasks.worlds.goals import EXPECTED
from k2jax.tasks.worlds.grammar import draw_task, generated_world
from k2jax.tasks.worlds.world_tools import WORLD

TASKS = 14


def drawn(number, rates=None):
    rng, world = random.Random(number), generated_world("food", "bakery", number)
    while (draft := draw_task(world, rng, 1 + number % 2)) is None:
        pass
    return world_task(f"t{number}", world.spec, draft, rates or FailureRates(), 30)


def programs(sizes):
    return tool_use_programs(SynthesisConfig(tool_use=sizes))


def dialogue_of(task, fault, seed):
    """A dialogue of the program that plays the agent, with a fault of one side."""
    agent = programs(ToolUseConfig(mistakes=float(fault == "agent")))["agent"]

    async def policy(task, messages):
        question = ModelQuestion("agent", "message", [], {"task": task, "messages": list(messages), "seed": seed})
        return (await agent.reply(question, seed)).message

    environment = ClosedUserEnvironment(seed) if fault == "user" else WorldEnvironment()
    played = with_broken_tool(task, seed) if fault == "tool" else task
    trajectory = asyncio.run(play(played, environment, policy, seed))
    messages = [dict(node.message) for node in trajectory.nodes if node.message]
    return {"messages": messages, "status": trajectory.status, "left": trajectory.metadata.get(OUTCOME, {})}


def blames(fault):
    """Whom the judge blames for planted faults that have kept the goal from being reached."""
    found = Counter()
    for number in range(TASKS):
        task = drawn(number)
        if fault == "user" and not task.metadata[USER]["facts"]:
            continue
        dialogue = dialogue_of(task, fault, number)
        report = exact_report(task, dialogue)
        found["solved" if report.solved else blamed(task, dialogue, report)] += 1
    return found


def test_an_agent_without_faults_asks_and_solves_everything():
    assert blames("nobody") == {"solved": TASKS}
    task = next(task for task in map(drawn, range(TASKS)) if task.metadata[USER]["facts"])
    messages = dialogue_of(task, "nobody", 0)["messages"]
    first = next(place for place, message in enumerate(messages) if message.get("tool_calls"))
    told = " ".join(str(message["content"]) for message in messages[:first] if message["role"] == "user")
    assert all(fact["text"] in told for fact in task.metadata[USER]["facts"])  # nobody can learn to guess them


@pytest.mark.parametrize("fault", ["agent", "user", "tool"])
def test_planted_faults_are_blamed_on_whom_they_were_planted_in(fault):
    found = blames(fault)
    assert found[fault] >= 0.6 * found.total() and set(found) <= {fault, "solved"}


@pytest.mark.parametrize(("tries", "fault"), [(1, "agent"), (3, "tool")])
def test_a_call_that_was_not_repeated_is_the_agents_fault_and_one_that_never_worked_the_tools(tries, fault):
    task = next(task for task in (drawn(n, FailureRates(unavailable=1.0)) for n in range(0, 40, 2)) if changes(task))
    calls = task.metadata[EXPECTED]["calls"]
    made = [*calls[:-1], *[calls[-1]] * tries]

    def policy(task, messages):
        ours = sum(message["role"] == "assistant" for message in messages)
        return called(made[ours][0], **made[ours][1]) if ours < len(made) else said("It did not work.")

    trajectory = asyncio.run(play(task, WorldEnvironment(), policy, 0))
    messages = [dict(node.message) for node in trajectory.nodes if node.message]
    dialogue = {"messages": messages, "status": "finished", "left": trajectory.metadata[OUTCOME]}
    dialogue["messages"] += [{"role": "user", "content": fact["text"]} for fact in task.metadata[USER]["facts"]]
    assert blamed(task, dialogue, exact_report(task, dialogue)) == fault


def changes(task):
    """Whether a task has one wish, whose last call changes the world."""
    calls = task.metadata[EXPECTED]["calls"]
    tools = {tool["name"]: tool for tool in task.metadata[WORLD]["spec"]["tools"]}
    return [bool(tools[name]["effects"]) for name, _ in calls] == [False] * (len(calls) - 1) + [True]


def test_rates_of_planted_faults_are_those_that_were_asked_for():
    task, rates = (
        next(task for task in map(drawn, range(9)) if task.metadata[USER]["facts"]),
        FaultRates(agent=0.3, user=0.2, tool=0.1),
    )
    counts = Counter(planted_fault(task, seed, rates) for seed in range(2000))
    assert {name: round(count / 2000, 1) for name, count in counts.items()} == {
        "agent": 0.3, "user": 0.2, "tool": 0.1, "nobody": 0.4
    }  # fmt: skip
    assert len({mistake_of(seed) for seed in range(40)}) == 5
    told = dataclasses.replace(task, metadata={**task.metadata, USER: {**task.metadata[USER], "facts": []}})
    assert "user" not in {planted_fault(told, seed, rates) for seed in range(200)}


def test_a_share_of_the_programs_verdicts_is_turned_round():
    judge = programs(ToolUseConfig(judge_mistakes=0.25))["judge"]
    task = drawn(2)
    dialogue = dialogue_of(task, "nobody", 0)
    inputs = {"task": task, "dialogue": dialogue, "rubric": task.metadata["rubric"]}
    question = ModelQuestion("judge", "verdict", [], inputs)
    says = [asyncio.run(judge.reply(question, seed)).text for seed in range(400)]
    assert 70 < sum('"nobody"' not in one for one in says) < 130


def test_evidence_is_where_the_agent_names_what_the_rubric_asks_for():
    messages = [
        said("Hello"),
        {"role": "user", "content": "for Ana Lopez"},
        called("book", guest="Ana Lopez", places=3),
    ]
    messages += [{"role": "tool", "content": "b7"}, said("It is b7.")]
    assert evidence("The agent books 3 places for Ana Lopez and tells the id, b7.", messages) == [2, 4]


def test_the_manifest_counts_verdicts_by_what_was_planted():
    def record(planted, blame, solved=False):
        exact = {"solved": solved, "blame": "nobody" if solved else planted}
        return {"dialogue": {"planted": planted}, "verdict": {"blame": blame}, "exact": exact}

    kept = [record("nobody", "nobody", solved=True), record("agent", "nobody")]
    dropped = [record("agent", "agent"), record("user", "tool"), record("tool", "tool", solved=True)]
    dropped.append(record("nobody", "tool"))  # for want of an answer of a tool, say
    found = judge_agreement(kept, dropped)
    none = dict.fromkeys(BLAMED, 0)
    assert found["blamed"]["agent"] == none | {"nobody": 1, "agent": 1}
    assert found["blamed"]["user"] == none | {"tool": 1} and found["blamed"]["tool"] == none
    assert found["blamed"]["none"] == none | {"tool": 1}
    assert found["blamed"]["solved"] == none | {"nobody": 1, "tool": 1}
    assert found["planted"] == pytest.approx(1 / 3) and (found["precision"], found["recall"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("role", "sizes", "message"),
    [
        ("writer", {"size": "small"}, r"config\.tool_use\.size is of the program that plays the writer"),
        ("user", {"user_faults": 0.1}, r"user_faults is of the program that plays the user"),
        ("judge", {"judge_mistakes": 0.1}, r"judge_mistakes is of the program"),
        ("agent", {"mistakes": 0.6, "tool_faults": 0.5}, r"together at most 1"),
    ],
)
def test_faults_of_programs_are_refused_where_a_model_plays(role, sizes, message):
    served = {role: AskedModelConfig(url="http://localhost:1", name="m")}
    with pytest.raises(UserError, match=message):
        resolved(synthesis(models=served, tool_use=ToolUseConfig(**sizes)))
