"""Terminal tasks of a few characters: find the file that holds a letter, and make another file of it.

``sort q: b k m`` asks for the sorted lines of the one file among ``b``, ``k`` and ``m`` that holds the letter ``q``,
in a new file ``out``. What the files hold is in no prompt, so that a solution looks before it acts: ``grep -l q *``,
then ``sort k>out``. A model of characters can learn it in the compact format of conversations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import json
import random
from typing import Any

from k2jax.agents.environment import Message
from k2jax.agents.environments.files import FILES, OUTPUTS
from k2jax.agents.scripted import called, play_actions, said
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.tasks.generated import GeneratedTasks, check_kinds, check_share, demonstrated_call, user

COMMANDS = {"sort": "sort", "copy": "cat", "turn": "tac", "first": "head -n1", "last": "tail -n1", "count": "wc -l"}
"""What makes the output of a file, by the word that asks for it."""
OUTPUT = "out"
DONE = "ok"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FILES, _SHORTEST = 3, 2
"""Files of a task, and lines of the shortest of them; no two have as many."""


class CommandTasks(GeneratedTasks):
    """Distinct tasks; metadata hold the files, the test and the commands of a solution."""

    def __init__(
        self, kinds: tuple[str, ...] = tuple(COMMANDS), count: int = 10_000, seed: int = 0, split: Split = "train"
    ):
        """A set of tasks.

        Args:
            kinds: of ``COMMANDS``, each with equal probability.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.

        Raises:
            UserError: a kind is unknown, or ``count`` is not positive.
        """
        check_kinds("commands", kinds, list(COMMANDS))
        self._kinds = kinds
        super().__init__("commands", count, split, stream=f"commands {seed} {split} {' '.join(kinds)}")

    def identity(self, task: Task) -> str:
        """The prompt and the files."""
        return task.id

    def draw(self, number: int, rng: random.Random) -> Task:
        """A task of any kind."""
        return _task(rng.choice(self._kinds), rng)


def _task(kind: str, rng: random.Random) -> Task:
    """A task whose files have different numbers of lines, and no letter in common."""
    names = sorted(rng.sample(_LETTERS, _FILES))
    lengths = rng.sample(range(_SHORTEST, _SHORTEST + _FILES), _FILES)
    letters = iter(rng.sample(_LETTERS, sum(lengths)))
    sized = zip(names, lengths, strict=True)
    lines = {name: [f"{next(letters)}{rng.randrange(10)}" for _ in range(length)] for name, length in sized}
    holder = rng.choice(names)
    prompt = f"{kind} {rng.choice(lines[holder])[0]}: {' '.join(names)}"
    texts = {name: "\n".join(those) + "\n" for name, those in lines.items()}
    command = COMMANDS[kind]
    return Task(
        id=f"{prompt} {json.dumps(texts, separators=(',', ':'))}",
        domain=kind,
        instruction=(user(prompt),),
        verifier="shell_test",
        environment="named_files",
        tools=("shell",),
        metadata={
            FILES: {name: {"text": text} for name, text in texts.items()},
            OUTPUTS: [OUTPUT],
            "test": f"{command}<{holder}|cmp -s - {OUTPUT}",
            "commands": list(_commands(prompt, holder)),
        },
    )


def _commands(prompt: str, name: str) -> tuple[str, str]:
    """Commands that look for the file, and that make the output of a file of this name."""
    kind, letter = prompt.partition(":")[0].split(" ")
    return f"grep -l {letter} *", f"{COMMANDS[kind]}<{name}>{OUTPUT}"


def command_demonstrations(tasks: Iterable[Task], direct: float = 0.7, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One conversation for every task: ``{"messages": [user, assistant, tool, ..., assistant]}``.

    The teacher looks before it acts, or takes one of the files that the instruction names without looking.

    Args:
        tasks: of the dataset ``commands``.
        direct: share of conversations in which it does not look.
        seed: of the choice of styles and files.

    Raises:
        UserError: ``direct`` is no share.
    """
    check_share("direct answers", direct)
    rng = random.Random(seed)
    for task in tasks:
        prompt, (look, act) = task.instruction[0]["content"], task.metadata["commands"]
        name = rng.choice(prompt.partition(": ")[2].split(" "))
        looks = rng.random() >= direct
        steps = [(look, _holder(act)), (act, "")] if looks else [(_commands(prompt, name)[1], "")]
        messages = [message for step in steps for message in demonstrated_call("shell", *step)]
        yield {"messages": [*task.instruction, *messages, said(DONE)]}


def _holder(command: str) -> str:
    return command.partition("<")[2].partition(">")[0]


def oracle(task: Task, messages: list[Message]) -> Message:
    """The commands of a solution, and then the end."""
    commands = [called("shell", command=command) for command in task.metadata["commands"]]
    return play_actions([*commands, said(DONE)], messages)
