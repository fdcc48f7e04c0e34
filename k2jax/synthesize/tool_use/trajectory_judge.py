"""The judge of whole trajectories: the rubric point by point with evidence, and who is to blame.

An agent's failure drops a trajectory as bad; a user's or a tool's drops it as void, since nothing is to be learnt of
it. Wherever a world's state says what was reached, the judge's verdict stands beside the exact one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import json
import re
from typing import Any

from k2jax.agents.judges.trajectories import transcript
from k2jax.agents.task import Task
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.domain_worlds import Work
from k2jax.tasks.worlds.dialogue import USER
from k2jax.tasks.worlds.failures import NOTHING_DONE
from k2jax.tasks.worlds.goals import EXPECTED, GoalReport, report_of
from k2jax.tasks.worlds.world import replayed
from k2jax.tasks.worlds.world_tools import spec_of, told_world, world_of

_VALUES = re.compile(r"[A-Z][a-z]+ [A-Z][a-z]+|\b[a-z]*\d+\b")
"""Names of people, ids and numbers."""
BLAMED = ("nobody", "agent", "user", "tool")
MOST_TURNS = 20
"""That show a point, in a verdict."""
DISAGREE = "the two verdicts differ"
_TRIES = 3
_REASONS = {"agent": "the agent failed", "user": "void: the user failed", "tool": "void: a tool failed"}
_POINT = {
    "type": "object",
    "required": ["point", "met", "turns"],
    "properties": {
        "point": {"type": "integer"},
        "met": {"type": "boolean"},
        "turns": {"type": "array", "items": {"type": "integer"}, "maxItems": MOST_TURNS},
    },
}


def _schema(points: int) -> dict[str, Any]:
    listed = {"type": "array", "items": _POINT, "maxItems": points}
    properties = {"points": listed, "blame": {"enum": list(BLAMED)}}
    return {"type": "object", "required": ["points", "blame"], "properties": properties}


def judged(second: str = "") -> Work:
    """The stage that asks a judge about a dialogue, and keeps what is right.

    Args:
        second: role that gives a second verdict, with the rubric's points in the other order; a dialogue on which the
            two differ leaves. Empty asks once.
    """

    async def work(record: Record, asker: Asker) -> Made:
        task, dialogue = Task.from_json(record["task_json"]), record["dialogue"]
        report = exact_report(task, dialogue)
        exact = {"solved": report.solved, "blame": blamed(task, dialogue, report), **report._asdict()}
        order = list(range(len(record["task"]["rubric"])))
        verdict = await _verdict(record, "judge", order, task, asker)
        judged = {**record, "verdict": verdict, "exact": exact}
        if second:
            judged["second_verdict"] = other = await _verdict(record, second, order[::-1], task, asker)
            if (other["blame"], _is_good(other, record)) != (verdict["blame"], _is_good(verdict, record)):
                return Made([], [(DISAGREE, judged)])
        if _is_good(verdict, record):
            return Made([judged])
        return Made([], [(_REASONS.get(verdict["blame"], "a point is not met"), judged)])

    return work


async def _verdict(record: Record, role: str, order: Sequence[int], task: Task, asker: Asker) -> dict[str, Any]:
    """A verdict with the numbers that the points of the rubric have, whatever the order in which they are shown."""
    dialogue, rubric = record["dialogue"], [record["task"]["rubric"][number] for number in order]
    points = "\n".join(f"{number}. {point}" for number, point in enumerate(rubric))
    text = (
        f"A conversation at a service desk, turn by turn:\n{transcript(dialogue['messages'])}\n\nWhat "
        f"is looked for:\n{points}\n\nSay of every point by its number whether it is met, and in which turns "
        "that is seen. If the user did not get what it wanted, say who is to blame: the agent; the user, if it "
        'left or kept back what it knew; or a tool that failed. Answer with JSON: {"points": [{"point": number, '
        '"met": true or false, "turns": [numbers]}], "blame": "nobody", "agent", "user" or "tool"}.'
    )
    inputs = {"task": task, "rubric": rubric, "dialogue": dialogue}
    asked = [{"role": "user", "content": text}]
    verdict = await asker.ask_object(role, "verdict", asked, _schema(len(rubric)), inputs=inputs)
    points = [point for point in verdict["points"] if 0 <= point["point"] < len(order)]
    return {**verdict, "points": [{**point, "point": order[point["point"]]} for point in points]}


def _is_good(verdict: Mapping[str, Any], record: Record) -> bool:
    met = {point["point"] for point in verdict["points"] if point["met"]}
    return verdict["blame"] == "nobody" and met >= set(range(len(record["task"]["rubric"])))


def exact_report(task: Task, dialogue: Mapping[str, Any]) -> GoalReport:
    """What the world says of a dialogue."""
    left = dialogue["left"]
    if not left:
        return GoalReport(0.0, 0.0, 1.0)
    world = world_of({**told_world(task), "state": left["state"]}, 0)
    said = [message for message in dialogue["messages"] if message["role"] == "assistant"]
    return report_of(task.metadata[EXPECTED], world, left["calls"], said)


def blamed(task: Task, dialogue: Mapping[str, Any], report: GoalReport) -> str:
    """Who is to blame for what was not reached, by the transcript, what the user knew, and the world.

    A user is who left or kept back what it knew. A tool is where the same calls would have reached the goal in a world
    whose tools all work. Else it is the agent.
    """
    if report.solved:
        return "nobody"
    facts = {fact["text"] for fact in task.metadata[USER]["facts"]}
    said = " ".join(str(message.get("content")) for message in dialogue["messages"] if message["role"] == "user")
    last = dialogue["messages"][-1]
    has_left = last["role"] == "assistant" and dialogue["status"] == "finished"
    is_asked = "?" in str(last.get("content"))
    if has_left and not all(fact in said for fact in facts) and (report.goal < 1 or is_asked):
        return "user"
    calls = dialogue["left"]["calls"] if dialogue["left"] else ()
    if report.obeyed < 1:
        return "agent"
    if report.goal == 1:  # what the agent was to tell may stand in an answer that was lost
        return "tool" if any(fate == "timeout" for _, _, fate, _ in calls) else "agent"
    told = told_world(task)
    right = replayed(spec_of(told["spec"]), told["state"], _meant(calls))
    return "tool" if all(right.reached(task.metadata[EXPECTED]["goal"])) else "agent"


def _meant(calls: Sequence[Sequence[Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Calls for a world without failures: those that were not carried out, and said so, only after several tries.

    Whoever does not repeat such a call has no tool to blame; after ``_TRIES`` the tool is at fault.
    """
    failed: Counter[str] = Counter()
    meant = []
    for name, arguments, fate, _ in calls:
        call = json.dumps([name, arguments], sort_keys=True)
        failed[call] += fate in NOTHING_DONE
        if fate not in NOTHING_DONE or failed[call] == _TRIES:
            meant.append((name, arguments))
    return meant


def evidence(point: str, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The agent's last turns in which an id, a number or a name of a point of the rubric stands."""
    sought = set(_VALUES.findall(point))
    turns = [(number, message) for number, message in enumerate(messages) if message["role"] == "assistant"]
    found = [number for number, message in turns if sought & set(_VALUES.findall(transcript([message])))]
    return found[-MOST_TURNS:]
