"""The parts of the pipeline of tool use: near-duplicates, and who is blamed for what."""

import asyncio
import dataclasses
import json
import random

import pytest

from k2jax.agents.environment import OUTCOME
from k2jax.agents.scaffolds.scripted import called, play, said
from k2jax.synthesize.tool_use.near_duplicates import distinct_worlds, nearest_earlier
from k2jax.synthesize.tool_use.trajectory_judge import blamed, exact_report, transcript
from k2jax.tasks.worlds.dataset import solve, world_task
from k2jax.tasks.worlds.dialogue import USER, WorldEnvironment
from k2jax.tasks.worlds.failures import FailureRates
from k2jax.tasks.worlds.goals import EXPECTED
from k2jax.tasks.worlds.grammar import SETTINGS, draw_task, generated_world


def test_near_duplicates_are_found_and_others_are_kept():
    places = [(category, setting) for category, settings in SETTINGS.items() for setting in settings]
    worlds = [generated_world(*place, number).spec.to_json() for place in places[:12] for number in range(2)]
    texts = list({tool["description"] for world in worlds for tool in world["tools"]})
    assert len(texts) > 60 and nearest_earlier(texts, 0.9) == [-1] * len(texts)
    changed = [f"{text.upper().replace('.', ',')} Please." for text in texts]
    found = nearest_earlier(texts + changed, 0.75)[len(texts) :]
    assert sum(one == number for number, one in enumerate(found)) >= 0.95 * len(texts)
    copies = [{"world": {**world, "name": f"copy{number}"}} for number, world in enumerate(worlds[:3])]
    records = [{"world": world} for world in worlds]
    kept, dropped = distinct_worlds(0.92)(records + copies)
    assert {record["world"]["name"] for _, record in dropped} >= {"copy0", "copy1", "copy2"}
    assert len(kept) >= 0.7 * len(records)


def drawn(number, rates=None, patience=None, wishes=1):
    rng = random.Random(number)
    world = generated_world("culture", "museum", number)
    while (draft := draw_task(world, rng, wishes)) is None or not draft.user.facts:
        pass
    if patience is not None:
        draft = draft._replace(user=dataclasses.replace(draft.user, patience=patience))
    return world_task(f"t{number}", world.spec, draft, rates or FailureRates(), 30)


def verdict(task, policy, seed=0):
    trajectory = asyncio.run(play(task, WorldEnvironment(), policy, seed))
    messages = [dict(node.message) for node in trajectory.nodes if node.message]
    dialogue = {"messages": messages, "status": trajectory.status, "left": trajectory.metadata.get(OUTCOME, {})}
    return blamed(task, dialogue, exact_report(task, dialogue))


def asks_first(task, messages):
    """Asks for everything before it acts: what the user does not tell it cannot do."""
    ours = messages[len(task.instruction) :]
    facts = [fact["text"] for fact in task.metadata[USER]["facts"]]
    told = " ".join(str(message["content"]) for message in ours if message["role"] == "user")
    if all(fact in told for fact in facts):
        asked = next(place for place, message in enumerate(ours) if message.get("tool_calls") or place == len(ours) - 1)
        acted = [message for message in ours[asked:] if message["role"] != "user"]
        return solve(task, [*messages[: len(task.instruction)], *acted])
    return said("Which one, for whom, when and how many, please?")


@pytest.mark.parametrize("number", range(6))
def test_who_is_blamed_for_a_planted_fault(number):
    task = drawn(number)
    assert verdict(task, solve) == "nobody"
    assert verdict(task, asks_first) == "nobody"
    assert verdict(task, lambda task, messages: said("There is nothing that I could do.")) in ("agent", "user")
    assert verdict(drawn(number, patience=1, wishes=3), asks_first) in ("user", "nobody")

    def tells_nothing(task, messages):
        message = solve(task, messages)
        return message if message.get("tool_calls") else said("Done.")

    if any(len(str(told)) for told in task.metadata[EXPECTED]["told"]):
        assert verdict(task, tells_nothing) == "agent"


def test_a_lost_answer_is_a_tools_fault():
    lost = FailureRates(timeout=1.0)
    task = drawn(1, lost)
    calls = task.metadata[EXPECTED]["calls"]

    def once(task, messages):
        ours = sum(message["role"] == "assistant" for message in messages)
        return called(calls[ours][0], **calls[ours][1]) if ours < len(calls) else said("I could not see the answer.")

    assert {verdict(task, once, seed) for seed in range(6)} <= {"tool", "user"}


def test_a_transcript_numbers_its_turns():
    messages = [{"role": "user", "content": "Hi."}, called("show", account="a1"), {"role": "tool", "content": "[]"}]
    assert transcript(messages) == '[0] user: Hi.\n[1] assistant: show({"account": "a1"})\n[2] tool: []'
    assert json.dumps(messages)
