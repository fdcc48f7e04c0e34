"""Tasks whose answer is a file: an agent is to leave one in its folder, and its text is compared.

They are the smallest tasks for agents that work in a folder, with any scaffold: one command solves most. ``write`` asks
for a word in a file, ``copy`` for the text of a file that is there, ``join`` for those of two, and ``follow`` for the
text of a file whose name is the text of another, which has to be read first.
"""

from __future__ import annotations

import base64
import io
import random
import tarfile
import zlib

from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments.files import FILES
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.errors import UserError
from k2jax.tasks.generated import GeneratedTasks, check_kinds, user
from k2jax.trajectory import Reward, Trajectory

KINDS = ("write", "copy", "join", "follow")
EXPECTED = "expected"
"""Key of a task's metadata: the texts that files are to have in the end, by path, but for a last line break."""
_LONGEST, _MOST = 1 << 20, 16 << 20  # bytes of a file that is read, and of all: zeros grow by a thousand
_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")


class FileAnswers(GeneratedTasks):
    """Distinct tasks of some kinds, in turn."""

    def __init__(
        self,
        kinds: tuple[str, ...] = ("write",),
        count: int = 2000,
        seed: int = 0,
        split: Split = "train",
        syllables: int = 3,
    ):
        """A set of tasks.

        Args:
            kinds: of ``KINDS``.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.
            syllables: of each name and word, two letters each.

        Raises:
            UserError: a kind is unknown, or a number is not positive.
        """
        check_kinds("file_answers", kinds, KINDS)
        if syllables < 1:
            raise UserError(f"file_answers: syllables is {syllables}; it must be positive")
        self._kinds, self._syllables = kinds, syllables
        super().__init__("file_answers", count, split, stream=f"file answers {seed}")

    def draw(self, number: int, rng: random.Random) -> Task:
        """A task of the next kind."""
        return _task(self._kinds[number % len(self._kinds)], rng, number, self._syllables)


def word(numbers: random.Random, syllables: int) -> str:
    """A word of these tasks."""
    return "".join(numbers.choices(_SYLLABLES, k=syllables))


def _task(kind: str, numbers: random.Random, number: int, syllables: int) -> Task:
    words: dict[str, None] = {}  # distinct, in order
    while len(words) < 4:
        words[word(numbers, syllables)] = None
    first, second, name, other = words
    instruction, files, text = {
        "write": (f"Write {first} to {name}", {}, first),
        "copy": (f"Copy {other} to {name}", {other: f"{first}\n"}, first),
        "join": (f"Join {other} and {other}2 to {name}", {other: f"{first}\n", f"{other}2": f"{second}\n"},
                 f"{first}\n{second}"),
        "follow": (f"Follow {other} to {name}", {other: f"{second}\n", second: f"{first}\n"}, first),
    }[kind]  # fmt: skip
    return Task(
        f"{kind}-{number}",
        f"file_answers/{kind}",
        (user(instruction),),
        "file_answers",
        environment="files",
        metadata={FILES: {path: {"text": given} for path, given in files.items()}, EXPECTED: {name: text}},
    )


class FilesAsExpected(Verifier):
    """1 if every expected file is there with its text, else 0."""

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of what the agent left."""
        found, expected = texts_left(trajectory), task.metadata[EXPECTED]
        right = [found.get(path, "").removesuffix("\n") == text for path, text in expected.items()]
        return Reward(float(all(right)), {"files": sum(right) / len(right)})


def texts_left(trajectory: Trajectory) -> dict[str, str]:
    """The texts that an episode of the environment ``files`` left, by path: regular files, and no links.

    The archive comes from an agent's sandbox, so nothing of it is unpacked; one that cannot be read has no texts.
    """
    found: dict[str, str] = {}
    room = _MOST
    try:
        archive = base64.b64decode(trajectory.metadata.get(OUTCOME, {}).get("archive", ""))
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for member in members:
                if member.isreg() and member.size <= min(_LONGEST, room):
                    found[member.name.removeprefix("./")] = members.extractfile(member).read().decode(errors="replace")
                    room -= member.size
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, OverflowError):
        return {}
    return found
