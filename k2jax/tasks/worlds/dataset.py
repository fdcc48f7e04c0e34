"""Tasks of simulated worlds, drawn from the grammar or read from a file of ``python -m k2jax.synthesize``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import random
from typing import Any

from k2jax.agents.environment import Message
from k2jax.agents.judges.trajectories import RUBRIC, rubric_of
from k2jax.agents.scaffolds.scripted import called, play_actions, said
from k2jax.agents.split import FileSplit, split_of
from k2jax.agents.task import Budget, Task
from k2jax.errors import UserError
from k2jax.tasks.generated import user
from k2jax.tasks.task_lines import read_tasks
from k2jax.tasks.worlds.dialogue import USER
from k2jax.tasks.worlds.failures import FailureRates
from k2jax.tasks.worlds.goals import EXPECTED
from k2jax.tasks.worlds.grammar import SETTINGS, TaskDraft, WorldSize, draw_task, generated_world
from k2jax.tasks.worlds.rubric_rewards import RUBRIC_SHARE
from k2jax.tasks.worlds.world_spec import WorldSpec
from k2jax.tasks.worlds.world_tools import WORLD, told_world, world_of

_TRIES = 20


class WorldTasks:
    """Dialogues with a user in a simulated world, in which an agent's calls change the world's records."""

    def __init__(
        self,
        path: str = "",
        *,
        count: int = 500,
        wishes: int = 2,
        worlds: int = 50,
        steps: int = 40,
        failures: float = 0.0,
        size: WorldSize = "full",
        rubric_share: float = 0.0,
        seed: int = 0,
        split: FileSplit = "train",
    ):
        """A set of tasks.

        Args:
            path: Task JSONL of ``python -m k2jax.synthesize``; empty draws tasks from the grammar.
            count: number of drawn tasks.
            wishes: most wishes of a user.
            worlds: different worlds that tasks are drawn from; those of the splits differ, too.
            steps: of an episode, see ``Budget``.
            failures: rate of each kind of failure of drawn tasks.
            size: of drawn worlds; ``small`` ones are for models of characters, see ``counters``.
            rubric_share: of the reward, that a served judge's verdict on the rubric has; the rest is the world's.
            seed: of drawn tasks.
            split: ``train`` or ``test``; ``all`` of a file.

        Raises:
            UserError: a number is out of range, or ``all`` of what is drawn is asked for.
        """
        if count < 1 or worlds < 1 or not 1 <= wishes <= 8:
            raise UserError("worlds: count and worlds must be positive, and wishes 1 to 8")
        if size != "full" and path:
            raise UserError("worlds: size is of drawn worlds; leave it out with path")
        if not 0 <= rubric_share <= 1:
            raise UserError(f"worlds: rubric_share is a share in [0, 1], not {rubric_share}")
        if split == "all" and not path:
            raise UserError("worlds: drawn tasks have the splits train and test; all is of a file")
        self._path, self._count, self._wishes, self._worlds = path, count, wishes, worlds
        self._steps, self._seed, self._split, self._size = steps, seed, split, size
        self._rubric_share = rubric_share
        names = [field.name for field in dataclasses.fields(FailureRates)]
        self._rates = FailureRates(**dict.fromkeys(names, failures))

    def load(self) -> Iterator[Task]:
        """The tasks in order.

        Raises:
            UserError: the file cannot be read, or has a line that is no task of a world.
        """
        for task in self._read() if self._path else self._drawn():
            yield _judged(task, self._rubric_share) if self._rubric_share else task

    def _drawn(self) -> Iterator[Task]:
        places = [(category, setting) for category, settings in SETTINGS.items() for setting in settings]
        rng = random.Random(f"worlds {self._seed} {self._split}")
        numbered = ((*place, number) for number in itertools.count() for place in places)
        mine = (place for place in numbered if split_of(" ".join(map(str, place))) == self._split)
        made = [generated_world(*place, size=self._size) for place in itertools.islice(mine, self._worlds)]
        for number in range(self._count):
            world = made[number % len(made)]
            drawn = next(filter(None, (draw_task(world, rng, self._wishes) for _ in range(_TRIES))), None)
            if drawn is None:
                raise UserError(f"worlds: no solvable task was found in {_TRIES} draws of {world.spec.name}")
            yield world_task(f"{world.spec.name}/{self._split}{number}", world.spec, drawn, self._rates, self._steps)

    def _read(self) -> Iterator[Task]:
        return read_tasks(self._path, self._split, lambda task: world_of(told_world(task), 0))


def _judged(task: Task, share: float) -> Task:
    """The task with a judge's verdict in its reward.

    Raises:
        UserError: it has no rubric.
    """
    rubric_of(task)
    return dataclasses.replace(task, verifier="worlds_rubric", metadata={**task.metadata, RUBRIC_SHARE: share})


def world_task(
    name: str,
    spec: WorldSpec,
    drawn: TaskDraft,
    rates: FailureRates,
    steps: int,
    tools: Sequence[str] = (),
    *,
    system: str = "",
) -> Task:
    """The task of a drawn one.

    Args:
        name: its id.
        spec: the world.
        drawn: what is asked, and by whom.
        rates: of failures.
        steps: see ``Budget``.
        tools: names of those that the agent has; empty is all.
        system: what stands before the world's rules in its prompt.
    """
    prompt = "\n\n".join(filter(None, (system, spec.policy)))
    told = {"spec": spec.to_json(), "state": drawn.state, "tools": list(tools), "rates": dataclasses.asdict(rates)}
    return Task(
        id=name,
        domain=f"worlds/{spec.name.rpartition('_')[0]}",
        instruction=({"role": "system", "content": prompt}, user(drawn.user.opening)),
        verifier="worlds",
        environment="worlds",
        tools=("worlds",),
        budget=Budget(steps=steps),
        metadata={
            WORLD: told,
            USER: drawn.user.to_json(),
            EXPECTED: dict(drawn.expected),
            RUBRIC: list(drawn.rubric),
        },
    )


def solve(task: Task, messages: Sequence[Message]) -> Message:
    """The oracle: the reference's calls, one in each message and again where one failed, then what is to be told.

    It knows what the user will say, and asks for nothing.
    """
    ours = messages[len(task.instruction) :]
    calls: list[Mapping[str, Any]] = list(task.metadata[EXPECTED]["calls"])
    done, place = 0, 0
    while place + 1 < len(ours) and done < len(calls):
        answer = ours[place + 1]
        done += not _is_failure(answer)
        place += 2
    if done < len(calls):
        name, arguments = calls[done]
        return called(name, **arguments)
    told = ". ".join(["It is done", *map(str, task.metadata[EXPECTED]["told"])])
    return play_actions([said(told)] + [said("You are welcome.")] * len(ours), ours[place:])


def _is_failure(answer: Message) -> bool:
    """Whether a call has to be repeated: nothing was done, and the answer says so."""
    return bool(answer.get("is_error")) and "nothing was done" in str(answer.get("content"))
