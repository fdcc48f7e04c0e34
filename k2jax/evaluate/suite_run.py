"""Asks a suite's tasks and keeps every answer on disk before it counts, so that a killed evaluation goes on.

A machine's failure is tried again three times. An answer for which that does not help counts as wrong and is counted
apart; the same command asks for it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import json
from pathlib import Path
import time
from typing import Any, Literal

from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.client import PromptTooLongError
from k2jax.errors import InfrastructureError, UserError
from k2jax.evaluate.answerers import Answerer, Given, failed_episode
from k2jax.evaluate.grader import Grader
from k2jax.files.append_log import AppendLog, ChecksummedLines, read_log
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.types import NO_TURN

FILE = "answers.jsonl"
RETRIES = 3
"""Times that an answer is tried again which a machine's failure has prevented."""
_HOPELESS = 8
"""Answers that fail at the beginning, with none that does not, after which nothing more is asked."""
Failure = Literal["", "machine", "too long"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedAnswer:
    """An answer with its verdict.

    Attributes:
        task: id of the task.
        sample: number among the answers to this task.
        digest: of the task as it was asked.
        score: the reward; 0 of a failure.
        parts: of the reward, by name.
        info: what explains the verdict.
        cut: whether a budget or the length of answers has ended it.
        messages: of the episode, instruction first.
        text: of the last answer.
        prompt_tokens: that the model read.
        tokens: that it wrote.
        likelihood: mean log-probability of those [nats]; None where it is not known.
        seconds: that it took, of the try that counts [s].
        tries: that it took.
        failure: ``machine``; ``too long`` of a prompt that does not fit; or empty.
        error: why it failed.
        graded: whether the suite's judge calls it right; None where there is none, or it gave no verdict.
    """

    task: str
    sample: int
    digest: str
    score: float
    parts: dict[str, float]
    info: dict[str, Any]
    cut: bool
    messages: list[dict[str, Any]]
    text: str
    prompt_tokens: int
    tokens: int
    likelihood: float | None
    seconds: float
    tries: int
    failure: Failure = ""
    error: str = ""
    graded: bool | None = None


class AnswerLog:
    """The answers of a suite in a folder, which one process at a time may write.

    Args:
        folder: of the suite; it is created.

    Attributes:
        answers: by id of the task and number of the sample; a later one takes the place of an earlier one.

    Raises:
        UserError: another process writes it, or it is damaged.
    """

    def __init__(self, folder: Path):
        self.answers: dict[tuple[str, int], JudgedAnswer] = {}
        self._log = AppendLog(folder / FILE, _AnswerLines())
        self._log.open(lambda record: self._keep(JudgedAnswer(**record)))

    def append(self, answer: JudgedAnswer) -> None:
        """Adds an answer; once this returns, no death of the process loses it."""
        self._log.append(dataclasses.asdict(answer))
        self._keep(answer)

    def close(self) -> None:
        """Lets another process write."""
        self._log.close()

    def _keep(self, answer: JudgedAnswer) -> None:
        self.answers[answer.task, answer.sample] = answer


def read_answers(folder: Path) -> dict[tuple[str, int], JudgedAnswer]:
    """The answers in a suite's folder by task and sample; none where there is no file.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / FILE
    answers = (JudgedAnswer(**record) for record in read_log(path, _AnswerLines())) if path.exists() else ()
    return {(answer.task, answer.sample): answer for answer in answers}


class _AnswerLines(ChecksummedLines):
    remedy = "delete the file to ask again"


async def run_suite(
    tasks: Sequence[Task],
    digests: dict[str, str],
    samples: int,
    answerer: Answerer,
    scorer: Scorer,
    *,
    log: AnswerLog,
    places: asyncio.Semaphore,
    report: Callable[[JudgedAnswer], None],
    all_asked: asyncio.Event | None = None,
    grader: Grader | None = None,
    token_budget: int = 0,
) -> None:
    """Asks for all answers that are not in the log, or that a machine prevented.

    Args:
        tasks: of the suite.
        digests: checksum of each by id.
        samples: answers to each.
        answerer: who answers.
        scorer: judges.
        log: of the answers.
        places: one for each answer at a time, of all suites that share them.
        report: is told of every new answer.
        all_asked: is set when nothing more is asked and the last answers are waited for, or None.
        grader: grades each beside ``scorer``, or None.
        token_budget: tokens in the log, read and written, from which on nothing more is asked; 0 is none.

    Raises:
        UserError: tokens are not told, which a budget needs; a task cannot be asked or judged; or all fail at first.
    """
    new: list[JudgedAnswer] = []

    async def ask(place: int, task: Task, sample: int) -> None:
        try:
            answer = await _answered(task, place, sample, digests[task.id], answerer, scorer)
            if grader is not None and not answer.failure:
                answer = dataclasses.replace(answer, graded=await grader.grade(task, answer.text))
        finally:
            places.release()
        if token_budget:
            _check_counted(answer)
        log.append(answer)
        report(answer)
        new.append(answer)
        _check_hopeful(new)

    try:
        async with asyncio.TaskGroup() as group:
            for place, task, sample in list(missing_answers(tasks, samples, log.answers)):
                await places.acquire()
                if token_budget and tokens_of(log.answers.values()) >= token_budget:
                    places.release()
                    break
                group.create_task(ask(place, task, sample))
            if all_asked is not None:
                all_asked.set()
    except BaseExceptionGroup as errors:  # not except*, out of which Python 3.11.2 raises a group again
        raise first_error(errors) from None


def _check_counted(answer: JudgedAnswer) -> None:
    if answer.text and not (answer.tokens or answer.prompt_tokens):
        raise UserError("the model does not say how many tokens it took, which config.token_budget counts")


def _check_hopeful(new: Sequence[JudgedAnswer]) -> None:
    if len(new) == _HOPELESS and all(answer.failure == "machine" for answer in new):
        raise UserError(f"the first {len(new)} answers all failed, the last with {new[-1].error}")


def tokens_of(answers: Iterable[JudgedAnswer]) -> int:
    """All tokens that answers took, read and written."""
    return sum(answer.prompt_tokens + answer.tokens for answer in answers)


def first_error(errors: BaseExceptionGroup) -> BaseException:
    """The first error of a group that is none itself."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first


def missing_answers(
    tasks: Sequence[Task], samples: int, answers: Mapping[tuple[str, int], JudgedAnswer]
) -> Iterator[tuple[int, Task, int]]:
    """Place, task and sample of what is to be asked; the first samples of all tasks come first."""
    for sample in range(samples):
        for place, task in enumerate(tasks):
            known = answers.get((task.id, sample))
            if known is None or known.failure == "machine":
                yield place, task, sample


async def _answered(
    task: Task, place: int, sample: int, digest: str, answerer: Answerer, scorer: Scorer
) -> JudgedAnswer:
    """An answer with its verdict, after up to ``RETRIES`` more tries."""
    for tries in range(1, RETRIES + 2):
        began = time.monotonic()
        try:
            given = await answerer.answer(task, place, sample)
            failure = await _judged(task, given.trajectory, scorer)
        except PromptTooLongError as error:
            given, failure = Given(failed_episode(task, place, sample, error), 0, 0), "too long"
        except InfrastructureError as error:
            given, failure = Given(failed_episode(task, place, sample, error), 0, 0), "machine"
        if failure != "machine" or tries > RETRIES:
            break
    trajectory, reward = given.trajectory, given.trajectory.reward or Reward(0.0)
    return JudgedAnswer(
        task=task.id,
        sample=sample,
        digest=digest,
        score=0.0 if failure else float(reward.value),
        parts=dict(reward.parts),
        info=json.loads(json.dumps(dict(reward.info))),
        cut=trajectory.status == "truncated",
        messages=[dict(node.message) for node in trajectory.nodes if node.message is not None],
        text=_last_answer(trajectory),
        prompt_tokens=given.prompt_tokens,
        tokens=given.tokens,
        likelihood=given.likelihood,
        seconds=time.monotonic() - began,
        tries=tries,
        failure=failure,
        error=trajectory.error if failure else "",
    )


async def _judged(task: Task, trajectory: Trajectory, scorer: Scorer) -> Failure:
    """Gives an episode its reward; says whether a machine has prevented that."""
    if trajectory.status in ("finished", "truncated") and trajectory.reward is None:
        await scorer.judge(task, trajectory)
    return "machine" if trajectory.status == "masked" else ""


def _last_answer(trajectory: Trajectory) -> str:
    sampled = [node.message for node in trajectory.nodes if node.turn != NO_TURN and node.message is not None]
    return str(sampled[-1].get("content") or "") if sampled else ""
