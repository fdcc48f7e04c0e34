"""Programs that play the models of the pipeline: a writer and an agent from the grammar, and an exact judge.

They answer from what a question was made of, not from its text, and are there to try the pipeline out and to bound it:
the agent makes mistakes at a rate that the config names, and the judge reads the transcript, the rubric and the world's
last state. It is not told what was planted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import random
from typing import Any

from k2jax.agents.scaffolds.scripted import called, said
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.synthesize.questions import AskedModel, ModelQuestion, ProgramModel
from k2jax.synthesize.settings import SynthesisConfig, ToolUseConfig
from k2jax.synthesize.stages import seed_of
from k2jax.synthesize.tool_use.planted_faults import FaultRates, mistake_of, planted_fault
from k2jax.synthesize.tool_use.trajectory_judge import blamed, evidence, exact_report
from k2jax.synthesize.tools.evolution_program import number_of, written_repository
from k2jax.tasks.worlds.dataset import solve
from k2jax.tasks.worlds.dialogue import USER
from k2jax.tasks.worlds.goals import EXPECTED
from k2jax.tasks.worlds.grammar import GeneratedWorld, WorldSize, draw_task, generated_world
from k2jax.tasks.worlds.world_spec import changes_state
from k2jax.tasks.worlds.world_tools import WORLD, spec_of

_TRIES = 40
ASKS, LACKS = "What else should I know?", "I cannot help you without knowing more."
"""How the agent asks for what it was not told, and what it says when that does not help."""


def tool_use_programs(config: SynthesisConfig) -> Mapping[str, AskedModel]:
    """The programs by role."""
    sizes, seed, size = config.tool_use, config.seed, config.tool_use.size
    rates, wrong = fault_rates(sizes), sizes.judge_mistakes
    return {
        "writer": ProgramModel("grammar", lambda question, _: _as_json(_written(question, seed, size))),
        "agent": ProgramModel("oracle with mistakes", lambda question, _: _acted(question, rates)),
        "judge": ProgramModel("exact state", lambda question, own: _as_json(_judged(question, wrong, own))),
    }


def fault_rates(sizes: ToolUseConfig) -> FaultRates:
    """The rates of planted faults."""
    return FaultRates(agent=sizes.mistakes, user=sizes.user_faults, tool=sizes.tool_faults)


def _as_json(value: Any) -> dict[str, str]:
    return {"content": json.dumps(value, ensure_ascii=False)}


def _written(question: ModelQuestion, seed: int, size: WorldSize) -> Any:
    """What the writer answers."""
    inputs = question.inputs
    if question.purpose == "world" and size == "small":
        return {"world": _world_of(inputs, seed, size).spec.to_json()}
    if question.purpose == "agent" and size == "small":
        return {"system": "", "tools": [tool["name"] for tool in inputs["world"]["tools"]]}
    if question.purpose == "agent":
        tools = [tool["name"] for tool in inputs["world"]["tools"]]
        system = f"You are {inputs['persona']} at a service desk. {inputs['autonomy']}"
        return {"system": f"{system} {inputs['world']['description']}", "tools": tools}
    if question.purpose == "task":
        return _written_task(inputs, seed, size)
    return written_repository(question, seed)


def _world_of(record: Mapping[str, Any], seed: int, size: WorldSize) -> GeneratedWorld:
    return generated_world(record["category"], record["setting"], number_of(record, seed), size)


def _written_task(inputs: Mapping[str, Any], seed: int, size: WorldSize) -> Any:
    world = _world_of(inputs, seed, size)
    rng = random.Random(seed_of(seed, inputs["name"], inputs["number"]))
    for _ in range(_TRIES):
        draft = draw_task(world, rng, inputs["wishes"])
        if draft is not None:
            return {"state": draft.state, "user": draft.user.to_json(), "rubric": draft.rubric, **draft.expected}
    raise UserError(f"no task of the world {world.spec.name} was found in {_TRIES} draws")


def _acted(question: ModelQuestion, rates: FaultRates) -> Mapping[str, Any]:
    """What the agent says: it asks for what it was not told, and then does as the oracle, but for one mistake."""
    task, messages, seed = (question.inputs[key] for key in ("task", "messages", "seed"))
    mistake = mistake_of(seed) if planted_fault(task, seed, rates) == "agent" else ""
    if mistake == "stops at once":
        return said("There is nothing that I could do.")
    asked = 2 * sum(message["role"] == "assistant" and message["content"] in (ASKS, LACKS) for message in messages)
    begin = len(task.instruction)
    if asked == len(messages) - begin and (untold := _untold(task, messages)):
        return said(ASKS if asked // 2 <= untold else LACKS)
    answered = [*messages[:begin], *messages[begin + asked :]]
    if mistake:  # it goes on as if all had gone well
        answered = [{**message, "is_error": False} for message in answered]
    message = solve(task, answered)
    if not message.get("tool_calls"):
        return said("Done.") if mistake == "tells nothing" else message
    function = message["tool_calls"][0]["function"]
    return _mistaken(task, mistake, function["name"], json.loads(function["arguments"]), seed) or message


def _untold(task: Task, messages: Sequence[Mapping[str, Any]]) -> int:
    """How many facts the user has if one of them was not told; else 0."""
    told = " ".join(str(message.get("content")) for message in messages if message["role"] == "user")
    facts = task.metadata[USER]["facts"]
    return 0 if all(fact["text"] in told for fact in facts) else len(facts)


def _mistaken(task: Task, mistake: str, name: str, arguments: Mapping[str, Any], seed: int) -> Mapping[str, Any] | None:
    """What a mistaken agent does instead of a call that matters; None where it does as it should."""
    spec, calls = spec_of(task.metadata[WORLD]["spec"]), task.metadata[EXPECTED]["calls"]
    matter = [name for name, _ in calls if changes_state(spec.tools_by_name[name])] or [calls[-1][0]]
    if name not in matter:
        return None
    rng = random.Random(seed_of("how", seed, name))
    if mistake == "skips a call":
        return said("It is done.")
    if mistake == "calls another tool":
        return called(rng.choice([other for other in spec.tools_by_name if other != name]), **arguments)
    if mistake == "changes an argument":
        key = rng.choice(list(arguments))
        return called(name, **{**arguments, key: _changed(arguments[key], task.metadata[WORLD]["state"], rng)})
    return None


def _changed(value: Any, state: Mapping[str, Any], rng: random.Random) -> Any:
    """Another value of the same kind: another record's id, another number, or another text."""
    for rows in state.values():
        if value in rows and len(rows) > 1:
            return rng.choice([key for key in rows if key != value])
    return value + rng.choice((-1, 1)) if isinstance(value, int) else f"{value}s"


def _judged(question: ModelQuestion, mistakes: float, seed: int) -> Any:
    """What the judge says of the transcript, the rubric and the world; a share of its verdicts is turned round."""
    task, dialogue = question.inputs["task"], question.inputs["dialogue"]
    report = exact_report(task, dialogue)
    blame, met = blamed(task, dialogue, report), report.solved
    if random.Random(seed_of("verdict", seed)).random() < mistakes:
        blame, met = ("agent", False) if met else ("nobody", True)
    points = [
        {"point": number, "met": met, "turns": evidence(point, dialogue["messages"])}
        for number, point in enumerate(question.inputs["rubric"])
    ]
    return {"points": points, "blame": blame}
