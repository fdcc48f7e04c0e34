"""Questions about a source in front of the agent, rewarded for what they say of it and for saying nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from k2jax.agents.environment import Message
from k2jax.agents.scaffolds.scripted import said
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.faithfulness.generated_pairs import ClaimDrawer
from k2jax.tasks.faithfulness.sentence_judge import load_judge
from k2jax.tasks.faithfulness.verifier import CONTEXT, EXPECTED, JUDGE
from k2jax.tasks.generated import user
from k2jax.tasks.record_fields import in_split, read_records

_SOLUTION = "solution"


class FaithfulnessTasks:
    """Tasks to answer from a source, of a file or drawn; the splits of drawn tasks have different topics."""

    def __init__(self, judge: str, *, path: str = "", count: int = 500, seed: int = 0, split: FileSplit = "train"):
        """A set of tasks.

        Args:
            judge: folder that ``python -m k2jax.env.faithfulness`` wrote.
            path: records with ``context``, ``question`` and, optionally, ``expected``, texts that an answer has to
                have; empty draws tasks.
            count: number of drawn tasks.
            seed: of drawn tasks.
            split: ``train`` or ``test``; ``all`` of a file.

        Raises:
            UserError: the folder has no judge, or an option has no meaning.
        """
        load_judge(judge)
        if count < 1 or (split == "all" and not path):
            raise UserError("faithfulness: count must be positive, and the split all is of a file")
        self._judge, self._path, self._count = str(Path(judge).expanduser().absolute()), path, count
        self._drawer, self._split = ClaimDrawer(seed, held_out=split == "test"), split

    def load(self) -> Iterator[Task]:
        """The tasks in order.

        Raises:
            UserError: the file cannot be read, or a record lacks a field.
        """
        return self._read() if self._path else self._drawn()

    def _drawn(self) -> Iterator[Task]:
        for number in range(self._count):
            topic, facts, source = self._drawer.source()
            name = facts[number % len(facts)].values["a"]
            own = [fact for fact in facts if fact.values["a"] == name]
            expected = dict.fromkeys(str(value) for fact in own for value in fact.values.values())
            task = self._task(
                f"{self._split}{number}", topic, source, f"What does the text say of {name}?", [*expected]
            )
            task.metadata[_SOLUTION] = " ".join(fact.worded(0) for fact in own)
            yield task

    def _read(self) -> Iterator[Task]:
        for number, record in enumerate(read_records("faithfulness", self._path), 1):
            context, question, expected = (record.get(key) for key in (CONTEXT, "question", EXPECTED))
            texts = [context, question, *(expected or ())] if isinstance(expected, list | None) else [None]
            if not all(isinstance(text, str) and text for text in texts):
                raise UserError(
                    f"faithfulness: record {number} of {self._path} needs the texts context and question, and as "
                    "expected a list of texts or nothing"
                )
            if in_split(f"{context}\n{question}", self._split):
                yield self._task(str(number), "records", context, question, expected or [])

    def _task(self, name: str, topic: str, context: str, question: str, expected: list[str]) -> Task:
        prompt = f"{context}\n\n{question} Answer in sentences, with what the text says alone."
        metadata = {CONTEXT: context, JUDGE: self._judge, EXPECTED: expected}
        return Task(name, f"faithfulness/{topic}", (user(prompt),), "faithfulness", metadata=metadata)


def oracle(task: Task, messages: Sequence[Message]) -> Message:
    """What the source says, in its own words.

    Raises:
        UserError: the task was read from a file, which knows no solution.
    """
    if _SOLUTION not in task.metadata:
        raise UserError("faithfulness: tasks of a file have no solution; check drawn ones")
    return said(task.metadata[_SOLUTION])
