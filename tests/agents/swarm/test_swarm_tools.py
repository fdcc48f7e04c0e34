"""The tools of a swarm: schemas as the report prints them, mistakes of the model, and what a sub-agent is."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents import Budget
from k2jax.agents.collect.queue_file import WrittenTask
from k2jax.agents.components import system
from k2jax.agents.registry import components, toolsets
from k2jax.agents.spawning import Spawner
from k2jax.agents.swarm.forms import TOOLS
from k2jax.client import PromptTooLongError, Sampling
from k2jax.errors import InfrastructureError, UserError
from k2jax.trajectory.steps import AGENT
from k2jax.trajectory.swarm import swarm_record
from tests.agents.swarm.orchestrated import assign, create, ended, messages_of, orchestrated, spawning
from tests.agents.test_delegate import Starter
from tests.agents.tool_episodes import compact_client, episode, task

PRINTED = r"""
{ "name": "create_subagent", "description": "Create a custom subagent with specific system prompt and name for reuse.",
"parameters": { "type": "object", "properties": { "name": { "type": "string",
"description": "Unique name for this agent configuration" }, "system_prompt": { "type": "string",
"description": "System prompt defining the agent's role, capabilities, and boundaries" } },
"required": ["name", "system_prompt"] } }
{ "name": "assign_task", "description":
"Launch a new agent.\nUsage notes:\n1. You can launch multiple agents concurrently whenever possible, to maximize performance;\n2. When the agent is done, it will return a single message back to you.",
"parameters": { "type": "object", "properties": { "agent": { "type": "string",
"description": "Specify which created agent to use." }, "prompt": { "type": "string",
"description": "The task for the agent to perform" } }, "required": ["agent", "prompt"] } }
"""  # noqa: E501
"""Appendix E.8, with the line breaks within its strings that its print has."""


async def echo(spawned):
    """A sub-agent that says its prompt."""
    return ended(spawned, spawned.task.instruction[-1]["content"])


def test_the_schemas_are_those_of_appendix_e8():
    create_text, _, assign_text = PRINTED.partition('\n{ "name": "assign_task"')
    printed = [json.loads(create_text), json.loads('{ "name": "assign_task"' + assign_text)]
    assert [tool["function"] for tool in toolsets.make("swarm").tools] == printed
    assert all(tool["type"] == "function" for form in TOOLS for tool in toolsets.make(f"swarm form={form}").tools)


def test_agents_that_were_created_do_tasks_and_one_that_is_asked_again_begins_anew():
    tasks = []

    async def run(spawned):
        tasks.append(spawned.task)
        return await echo(spawned)

    made, shown = orchestrated(run, "swarm steps=7", [create("x", "Be brief."), create("y")],
                               [assign("x", "one"), assign("y", "two"), assign("x", "three")])  # fmt: skip
    assert all("has been created" in text for text in made) and shown == ["one", "two", "three"]
    asked = [[message["content"] for message in each.instruction] for each in tasks]
    assert asked == [["Be brief.", "one"], ["You are careful.", "two"], ["Be brief.", "three"]]
    assert [each.metadata[AGENT] for each in tasks] == ["x", "y", "x"]
    assert {(each.verifier, each.budget.steps, each.tools) for each in tasks} == {("", 7, ("calculator",))}
    assert [each.id for each in tasks] == ["t/1", "t/2", "t/3"]


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([create("x"), create("x")], "a sub-agent 'x' already"),
        ([create("x"), assign("y")], "no sub-agent 'y'"),
        ([create("x"), assign("x", " \n")], "prompt is empty"),
        ([create(" ")], "needs a name"),
        ([create("x", "")], "a system prompt"),
        ([create("x"), create("y"), create("z"), create("w")], "no more may be created"),
        ([create("x"), assign("x"), assign("x"), assign("x")], "at most 2 may be at a time"),
        ([("create_subagent", {"name": "x"})], "'system_prompt' is a required property"),
        ([create("x"), ("assign_task", {"agent": "x", "prompt": "a", "images": 1})], "no argument 'images'"),
    ],
)
def test_mistakes_are_errors_to_the_model_and_the_other_calls_are_carried_out(calls, words):
    (shown,) = orchestrated(echo, "swarm most=3 live=2", calls)
    assert shown[-1].startswith("Error: ") and words in shown[-1]
    assert not any(text.startswith("Error") for text in shown[:-1])


def test_half_surrogate_pairs_that_a_model_writes_are_no_text_that_a_sub_agent_is_told():
    image, tasks = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, []

    async def run(spawned):
        tasks.append(WrittenTask("kind", spawned.task).line().decode())
        return ended(spawned, "")

    fields = {"instruction": ({"role": "user", "content": [image]},), "others": ("calculator", "delegate")}
    calls = [assign("\ud800", "a\udfffb"), ("delegate", {"instruction": "\ud800"})]
    orchestrated(run, "swarm images=true", [create("\ud800", "\ud800 ")], calls, **fields)
    assert len(tasks) == 2 and all("\\ud" not in line and "?" in line for line in tasks)
    assert "a?b" in tasks[0] and "base64,AA==" in tasks[0]


def test_a_name_of_any_length_is_told_to_be_unknown_without_a_comparison_of_all_its_characters():
    long = "".join(chr(0x4E00 + index * 7919 % 3001) for index in range(3_000))
    (shown,) = orchestrated(echo, "swarm", [create(long), create("x" * 13), assign(f"{long}!"), assign("x" * 12)])
    assert all("no sub-agent" in text for text in shown[2:]) and "mean" not in shown[2] and "mean" in shown[3]


def test_tasks_of_an_episode_are_counted_and_those_that_were_refused_are_not():
    two = [assign("x", ""), assign("x", "1"), assign("x", "2")]
    *_, second, third = orchestrated(echo, "swarm most=3", [create("x")], two, [assign("x"), assign("x")])
    assert second[1:] == ["1", "2"] and third[0] == "look"
    assert third[1] == "Error: there have been 3 sub-agents already, and 3 is the most"


def test_whatever_becomes_of_a_sub_agent_is_one_message():
    async def run(spawned):
        text = spawned.task.instruction[-1]["content"]
        if text == "hang":
            await asyncio.Event().wait()
        if text in ("lost", "long"):
            raise {"lost": InfrastructureError("3 workers"), "long": PromptTooLongError("9 of 8 tokens")}[text]
        status = {"cut": "truncated", "mute": "truncated", "broken": "masked"}.get(text, "finished")
        return ended(spawned, "" if text == "mute" else f"it is {text}", status, error="SandboxError: secret path")

    texts = ("fine", "cut", "mute", "broken", "lost", "long", "hang")
    _, shown = orchestrated(run, "swarm seconds=0.2", [create("x")], [assign("x", text) for text in texts])
    assert shown == [
        "it is fine",
        "[unfinished] it is cut",
        "[unfinished]",
        "[failed] its machine broke down",
        "[failed] its machine broke down",
        "[failed] its prompt is too long",
        "[failed] it took too long",
    ]


def test_an_episode_records_all_sub_agents_also_those_without_a_trajectory():
    def say(text):
        calls = ["!n x", "!n idle", "!a x 12+30", "!a x lost"]
        return "\n".join(calls) if text == "<a+b=>" else "done" if text.startswith("<a+b") else "42"

    class Losing(Starter):
        async def run(self, spawned):
            if spawned.task.instruction[-1]["content"] == "lost":
                raise InfrastructureError("gone")
            return await super().run(spawned)

    client = compact_client(say)
    starter = Losing(client, Sampling(max_tokens=60))
    result = episode(client, task(tools=("swarm form=compact",)), spawner=starter.spawner)
    assert (result.status, result.answer) == ("finished", "done")
    shown = [node.message["content"] for node in result.nodes if node.message["role"] == "tool"]
    assert shown == [".", ".", "42", "[failed] its machine broke down"]
    record = swarm_record(result)
    assert (record.created, record.used, record.assigned, record.finished) == (2, 1, 2, 1)
    assert [(each.status, each.key, each.metadata[AGENT]) for _, each in sorted(result.spawned.items())] == [
        ("finished", result.key, "x"), ("masked", result.key, "x"),
    ]  # fmt: skip
    assert starter.tasks[0].instruction == ({"role": "user", "content": "12+30"},)


def test_one_call_with_an_array_of_prompts_is_a_message_with_all_answers():
    prompts = [{"prompt": text} for text in ("one", "two", "three")]
    tool = "swarm form=array live=2"
    shown = orchestrated(echo, tool, [("create_sub_agents", {"sub_agents": prompts[:2]})],
                         [("create_sub_agents", {"sub_agents": prompts})])  # fmt: skip
    assert shown[0] == ["Sub-agent 1: one\n\nSub-agent 2: two"] and "at most 2 may be at a time" in shown[1][0]


def test_long_messages_in_one_result_leave_room_for_each_other():
    prompts = [{"prompt": f"<{number}>" + "x" * 4_000 + f"</{number}>"} for number in range(20)]
    ((shown,),) = orchestrated(echo, "swarm form=array", [("create_sub_agents", {"sub_agents": prompts})])
    assert all(f"<{number}>" in shown and f"</{number}>" in shown for number in range(20)) and len(shown) <= 20_000


@pytest.mark.parametrize(("depth", "below"), [(1, ()), (2, ("depth=1",)), (3, ("depth=2", "depth=1"))])
def test_sub_agents_have_the_tools_of_the_swarm_where_they_may_and_the_same_limits(depth, below):
    tools = []

    async def run(spawned):
        tools.append(spawned.task.tools)
        if len(spawned.task.tools) > 1:
            await messages_of(spawning(spawned.spawner), spawned.task.tools[1], [[create("y")], [assign("y")]])
        return await echo(spawned)

    toolset = f"swarm depth={depth} steps=5 most=4 live=3 seconds=60"
    orchestrated(run, toolset, [create("x")], [assign("x")])
    assert [each[0] for each in tools] == ["calculator"] * len(tools) and tools[-1] == ("calculator",)
    limits = "steps=5 most=4 form=full live=3 seconds=60.0 images=False"
    assert [each[1] for each in tools[:-1]] == [f"swarm {level} {limits}" for level in below]


def test_sub_agents_see_the_images_of_the_task_where_they_are_to_and_nobody_speaks_to_them():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    instruction = ({"role": "user", "content": [image, {"type": "text", "text": "how many?"}]},)
    tasks = []

    async def run(spawned):
        tasks.append(spawned.task)
        return ended(spawned, "")

    for toolset in ("swarm images=true", "swarm"):
        fields = {"instruction": instruction, "metadata": {"user_turns": ["and now?"], AGENT: "above"}}
        orchestrated(run, toolset, [create("x")], [assign("x")], **fields)
    shown = [each.instruction[-1]["content"] for each in tasks]
    assert shown == [[image, {"type": "text", "text": "look"}], "look"]
    assert [each.metadata for each in tasks] == [{"store": {"a": "12", "b": "30"}, AGENT: "x"}] * 2


@pytest.mark.parametrize("text", ["live=0", "seconds=-1", "depth=0", "images=true role=helper", "form=short"])
def test_options_out_of_range_are_one_line(text):
    with pytest.raises(UserError, match="swarm"):
        toolsets.make(f"swarm {text}")


def test_the_system_prompt_has_the_date_of_its_option_and_asks_nobody_for_parallel_work():
    plain = task()
    first, *rest = components.make("swarm date=2026-01-28", task=plain).instruction
    assert first["role"] == "system" and first["content"].endswith("Today's date: 2026-01-28")
    assert "create_subagent" in first["content"] and "assign_task" in first["content"] and rest == [*plain.instruction]
    said = first["content"].replace("supporting multiple queries in parallel", "")
    assert not any(word in said.lower() for word in ("parallel", "concurrent", "at once", "several sub", "{", "}"))
    behind = components.make("swarm date=2026-01-28", task=system(plain, "Hm.")).instruction[0]["content"]
    assert behind == f"Hm.\n\n{first['content']}"
    for options in ("", "date=today"):
        with pytest.raises(UserError, match="date"):
            components.make(f"swarm {options}", task=plain)


NAMES = st.sampled_from(["a", "b", "c", " "])
CALLS = st.one_of(st.builds(create, NAMES), st.builds(assign, NAMES, st.sampled_from(["p", "q", ""])))


def expected(answers, most, live):
    """What each call is to be answered, in the words that matter: the calls of an answer begin in their order."""
    agents, assigned = [], 0
    for calls in answers:
        at_work = 0
        for tool, arguments in calls:
            name = arguments.get("name", arguments.get("agent"))
            if tool == "create_subagent":
                mistakes = {"needs": name == " ", "already": name in agents, "no more": len(agents) == most}
                agents += [] if any(mistakes.values()) else [name]
                yield next((words for words, holds in mistakes.items() if holds), "has been created")
            elif name not in agents:
                yield "no sub-agent"
            elif not arguments["prompt"]:
                yield "empty"
            elif at_work == live:
                yield "at a time"
            elif assigned == most:
                yield "is the most"
            else:
                at_work, assigned = at_work + 1, assigned + 1
                yield f"{assigned} {arguments['prompt']}"


@settings(max_examples=60, deadline=None)
@given(
    answers=st.lists(st.lists(CALLS, min_size=1, max_size=7), min_size=1, max_size=3),
    ticks=st.lists(st.integers(0, 5), min_size=8, max_size=8),
    most=st.integers(1, 5),
    live=st.integers(1, 3),
)
def test_limits_depend_on_the_order_of_the_calls_alone_and_a_rebuilt_episode_finds_the_same(answers, ticks, most, live):
    answers, runs = [[create("a")], *answers], []

    async def run(spawned):
        number = int(spawned.task.id.removeprefix("t/"))
        runs.append(number)
        for _ in range(ticks[number % 8]):
            await asyncio.sleep(0)
        return ended(spawned, f"{number} {spawned.task.instruction[-1]['content']}")

    async def twice():
        spawner, shown = Spawner(run), []
        for _ in range(2):
            spawner.begin()
            shown.append(await messages_of(spawning(spawner), f"swarm most={most} live={live}", answers))
        return shown

    first, again = asyncio.run(twice())
    texts, words = [text for each in first for text in each], list(expected(answers, most, live))
    assert len(texts) == len(words)
    assert all(word in text for word, text in zip(words, texts, strict=True)), (words, texts)
    assert again == first and runs == list(range(1, len(runs) + 1))


@pytest.mark.parametrize("method", ["hide_tool_result", "summary"])
def test_agents_that_a_rewritten_context_shows_again_are_not_created_twice(method):
    answers = iter(["!n x\n!n y\n!n y", "!calc 1+2", "!n z", "done"])

    def say(text):
        return "so far" if text.rpartition("<")[2].startswith("Your context is full") else next(answers)

    tools, scaffold = ("calculator", "swarm form=compact"), f"chat context={method} tokens=60"
    result = episode(compact_client(say), task(tools=tools, budget=Budget(steps=20), scaffold=scaffold))
    made = [node for node in result.nodes if (node.message or {}).get("name") == "n"]
    assert result.status == "finished" and len(made) > 4, "none is shown again"
    assert swarm_record(result).created == 3
