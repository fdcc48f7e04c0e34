"""Programs that play the models of the pipeline: a writer and an agent from the grammar, and an exact judge.

They answer from what a question was made of, not from its text, and are there to try the pipeline out and to bound it:
the agent makes mistakes at a rate that the config names, and the judge knows the worlds' states.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import random
from typing import Any

from k2jax.agents.scaffolds.scripted import called, said
from k2jax.errors import UserError
from k2jax.synthesize.questions import AskedModel, ModelQuestion, ProgramModel
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import seed_of
from k2jax.synthesize.tools.evolution_program import number_of, written_repository
from k2jax.tasks.worlds.dataset import solve
from k2jax.tasks.worlds.grammar import draw_task, generated_world

_TRIES = 40
MISTAKES = ("skips a call", "changes an argument", "tells nothing", "stops at once")


def tool_use_programs(config: SynthesisConfig) -> Mapping[str, AskedModel]:
    """The programs by role."""
    rate, seed = config.tool_use.mistakes, config.seed
    return {
        "writer": ProgramModel("grammar", lambda question, _: _as_json(_written(question, seed))),
        "agent": ProgramModel(f"oracle with mistakes {rate}", lambda question, _: _acted(question, rate)),
        "judge": ProgramModel("exact state", lambda question, _: _as_json(_judged(question))),
    }


def _as_json(value: Any) -> dict[str, str]:
    return {"content": json.dumps(value, ensure_ascii=False)}


def _written(question: ModelQuestion, seed: int) -> Any:
    """What the writer answers."""
    inputs = question.inputs
    if question.purpose == "agent":
        tools = [tool["name"] for tool in inputs["world"]["tools"]]
        system = f"You are {inputs['persona']} at a service desk. {inputs['autonomy']}"
        return {"system": f"{system} {inputs['world']['description']}", "tools": tools}
    if question.purpose == "task":
        return _written_task(inputs, seed)
    return written_repository(question, seed)


def _written_task(inputs: Mapping[str, Any], seed: int) -> Any:
    world = generated_world(inputs["category"], inputs["setting"], number_of(inputs, seed))
    rng = random.Random(seed_of(seed, inputs["name"], inputs["number"]))
    for _ in range(_TRIES):
        draft = draw_task(world, rng, inputs["wishes"])
        if draft is not None:
            return {"state": draft.state, "user": draft.user.to_json(), "rubric": draft.rubric, **draft.expected}
    raise UserError(f"no task of the world {world.spec.name} was found in {_TRIES} draws")


def _acted(question: ModelQuestion, rate: float) -> Mapping[str, Any]:
    """What the agent says: the oracle's message, but for one mistake in some episodes."""
    task, messages = question.inputs["task"], question.inputs["messages"]
    rng = random.Random(seed_of("mistake", question.inputs["seed"]))
    mistake = rng.choice(MISTAKES) if rng.random() < rate else ""
    if mistake == "stops at once":
        return said("There is nothing that I could do.")
    message = dict(solve(task, messages))
    if mistake == "tells nothing" and not message.get("tool_calls"):
        return said("Done.")
    if message.get("tool_calls"):
        function = message["tool_calls"][0]["function"]
        name, arguments = function["name"], json.loads(function["arguments"])
        changes = not name.startswith(("find_", "get_"))
        if mistake == "skips a call" and changes:
            return said("It is done.")
        if mistake == "changes an argument" and changes:
            return called(name, **{key: _changed(value) for key, value in arguments.items()})
    return message


def _changed(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else value


def _judged(question: ModelQuestion) -> Any:
    """What the judge says: the exact verdict, with the agent's turns as evidence."""
    exact, rubric = question.inputs["exact"], question.inputs["rubric"]
    turns = [number for number, message in enumerate(question.inputs["messages"]) if message["role"] == "assistant"]
    points = [{"point": number, "met": exact["solved"], "turns": turns[-1:]} for number in range(len(rubric))]
    return {"points": points, "blame": exact["blame"]}
