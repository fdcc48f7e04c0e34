"""The scores of a suite from its answers, with errors clustered by task, and what they took; comparison of two runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.evaluate.judge_agreement import judge_agreement
from k2jax.evaluate.pass_at_k import pass_at_k, pass_hat_k
from k2jax.evaluate.statistics import (
    MeanEstimate,
    PairedDifference,
    best_of_n,
    cluster_bootstrap,
    clustered_mean,
    majority_vote,
    paired_difference,
)
from k2jax.evaluate.suite import Suite
from k2jax.evaluate.suite_run import JudgedAnswer
from k2jax.evaluate.votes import VOTES
from k2jax.trajectory.types import ITEMS

Answers = Mapping[tuple[str, int], JudgedAnswer]


class Price(NamedTuple):
    """What tokens cost, in a currency of the user's.

    Attributes:
        read: for a million tokens of prompts.
        written: for a million tokens of answers.
    """

    read: float = 0.0
    written: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteScores:
    """What came of a suite.

    Attributes:
        scores: by metric; ``accuracy`` comes first.
        domains: accuracy by domain of the tasks, where there are several.
        bootstrap_error: standard error of the accuracy by drawing tasks with replacement, as a check.
        tasks: their number.
        samples: answers to each.
        tokens: ``read`` and ``written``, and the mean of those that were written for an answer.
        seconds: that all answers took together [s].
        cost: of the tokens.
        failures: numbers of answers: ``machine`` and ``too long``, which count as wrong, and ``cut``, which were judged
            as far as their verifiers judge what was cut; of a judge, ``ungraded``.
        judge: how far the suite's judge agrees with the verifier, see ``judge_agreement``; empty without one.
        unasked: answers that were not asked for, for the token budget was used up; their tasks are left out.
    """

    scores: dict[str, MeanEstimate]
    domains: dict[str, MeanEstimate]
    bootstrap_error: float
    tasks: int
    samples: int
    tokens: dict[str, float]
    seconds: float
    cost: float
    failures: dict[str, int]
    judge: dict[str, MeanEstimate] = dataclasses.field(default_factory=dict)
    unasked: int = 0

    def record(self) -> dict[str, Any]:
        """All but the seconds as JSON values; what is not known or not bounded is None."""
        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "seconds"
        }
        for name in ("scores", "domains", "judge"):
            values[name] = {key: finite(each._asdict()) for key, each in values[name].items()}
        return finite(values)


def score_suite(suite: Suite, tasks: Sequence[Task], answers: Answers, price: Price) -> SuiteScores:
    """The scores of a suite, of the tasks whose answers are all there.

    Args:
        suite: says what is measured, and what is right.
        tasks: of the suite.
        answers: by task and sample.
        price: of tokens.

    Raises:
        UserError: a metric needs what the answers do not have, or there is no answer.
    """
    unasked = len(tasks) * suite.samples - len(answers)
    if not (tasks := complete_tasks(suite, tasks, answers)):
        raise UserError("config.token_budget was used up before all answers to one task were there; raise it")
    of_tasks = [[answers[task.id, sample] for sample in range(suite.samples)] for task in tasks]
    every = [answer for of_task in of_tasks for answer in of_task]
    right_TK = np.array([[value_of(suite, answer) for answer in of_task] for of_task in of_tasks], float)
    clusters = np.repeat(np.arange(len(tasks)), suite.samples).tolist()
    right = right_TK.ravel().tolist()
    scores = {"accuracy": clustered_mean(right, clusters)}
    if any(answer.score != mark for answer, mark in zip(every, right, strict=True)):
        scores["reward"] = clustered_mean([answer.score for answer in every], clusters)
    for name in sorted(set().union(*(answer.parts for answer in every))):
        scores[f"part/{name}"] = clustered_mean([answer.parts.get(name, 0.0) for answer in every], clusters)
    scores |= _pooled_items(tasks, of_tasks) | _passes(suite, right_TK)
    for name, of_task in _metrics(suite):
        values = [of_task(task, group, marks) for task, group, marks in zip(tasks, of_tasks, right_TK, strict=True)]
        scores[name] = clustered_mean(values, range(len(values)))
    written, read = (sum(getattr(answer, name) for answer in every) for name in ("tokens", "prompt_tokens"))
    return SuiteScores(
        scores=scores,
        domains=_domains(tasks, right_TK),
        bootstrap_error=cluster_bootstrap(right, clusters).error,
        tasks=len(tasks),
        samples=suite.samples,
        tokens={"read": read, "written": written, "mean": written / len(every)},
        seconds=math.fsum(answer.seconds for answer in every),
        cost=(read * price.read + written * price.written) / 1e6,
        failures={
            **{kind: sum(answer.failure == kind for answer in every) for kind in ("machine", "too long")},
            "cut": sum(answer.cut for answer in every),
            **({"ungraded": sum(answer.graded is None for answer in every)} if suite.judge else {}),
        },
        judge=_agreement(every, right, clusters),
        unasked=unasked,
    )


def complete_tasks(suite: Suite, tasks: Sequence[Task], answers: Answers) -> list[Task]:
    """The tasks whose answers are all there: all of them, but where a token budget has ended the suite."""
    return [task for task in tasks if all((task.id, sample) in answers for sample in range(suite.samples))]


def _agreement(
    every: Sequence[JudgedAnswer], right: Sequence[float], clusters: Sequence[int]
) -> dict[str, MeanEstimate]:
    """How far the judge agrees with the verifier, on the answers that have both verdicts."""
    both = [
        (answer.graded, mark == 1.0, cluster)
        for answer, mark, cluster in zip(every, right, clusters, strict=True)
        if answer.graded is not None
    ]
    return judge_agreement(*map(list, zip(*both, strict=True))) if both else {}


def is_right(suite: Suite, answer: JudgedAnswer) -> bool:
    """Whether an answer is right."""
    return not answer.failure and answer.score >= suite.correct


def compare(suite: Suite, before: Answers, after: Answers) -> PairedDifference:
    """How much better the answers after are than those before, by accuracy, on the tasks that both have.

    Raises:
        UserError: the runs have no task in common, or asked one of them differently.
    """
    digests = {answer.task: answer.digest for answer in before.values()}
    for answer in after.values():
        if digests.get(answer.task, answer.digest) != answer.digest:
            raise UserError(f"the other run has another task {answer.task!r}: its prompt or verifier differs")
    try:
        found = paired_difference(*(_by_task(suite, answers.values()) for answers in (before, after)))
        return found._replace(low=max(-1.0, found.low), high=min(1.0, found.high))  # of shares
    except ValueError as error:
        raise UserError(f"{error}: nothing can be compared") from None


def finite(value: Any) -> Any:
    """JSON values with None in the place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _by_task(suite: Suite, answers: Iterable[JudgedAnswer]) -> dict[str, list[float]]:
    found = defaultdict(list)
    for answer in answers:
        found[answer.task].append(value_of(suite, answer))
    return found


def value_of(suite: Suite, answer: JudgedAnswer) -> float:
    """What an answer adds to the accuracy: 1 or 0, or of equally likely choices the share of the right one."""
    if suite.method == "choices":
        return 0.0 if answer.failure else answer.score
    return float(is_right(suite, answer))


def _domains(tasks: Sequence[Task], right_TK: np.ndarray) -> dict[str, MeanEstimate]:
    places = defaultdict(list)
    for place, task in enumerate(tasks):
        places[task.domain].append(place)
    if len(places) < 2:
        return {}
    samples = right_TK.shape[1]
    return {
        domain: clustered_mean(right_TK[found].ravel(), np.repeat(found, samples).tolist())
        for domain, found in sorted(places.items())
    }


_OfTask = Callable[[Task, Sequence[JudgedAnswer], np.ndarray], float]


def _metrics(suite: Suite) -> list[tuple[str, _OfTask]]:
    """Names of the suite's other metrics over several samples, and what gives each for a task."""
    k, found = suite.samples, []
    if "majority" in suite.metrics:
        found.append((f"majority@{k}", _majority))
    if "best" in suite.metrics:
        found += [(f"best@{size}", _best(size, lambda answer: answer.likelihood)) for size in _sizes(k)]
    if "judged_best" in suite.metrics:
        found += [(f"judged_best@{size}", _best(size, lambda answer: answer.graded)) for size in _sizes(k)]
    return found


def _pooled_items(tasks: Sequence[Task], of_tasks: Sequence[Sequence[JudgedAnswer]]) -> dict[str, MeanEstimate]:
    """The share of parts of answers that are right by kind, such as of all instructions of all prompts.

    An answer without a verdict has none of them right; it has so many as the others to its task, or its instructions.
    """
    kinds = sorted({kind for group in of_tasks for answer in group for kind in answer.info.get(ITEMS, {})})
    found = {}
    for kind in kinds:
        marks, clusters = [], []
        for place, (task, group) in enumerate(zip(tasks, of_tasks, strict=True)):
            of_answers = [answer.info.get(ITEMS, {}).get(kind) for answer in group]
            count = max([*(len(each) for each in of_answers if each), len(task.metadata.get("instructions", ()))])
            for each in of_answers:
                marks += map(float, each or [0.0] * count)
            clusters += [place] * (len(marks) - len(clusters))
        found[f"{ITEMS}/{kind}"] = clustered_mean(marks, clusters)
    return found


def _passes(suite: Suite, right_TK: np.ndarray) -> dict[str, MeanEstimate]:
    """pass@k and pass^k of the suite, as far as it measures them."""
    right_T, drawn_T = right_TK.astype(int).sum(1), np.full(len(right_TK), suite.samples)
    return {
        f"{name}{size}": estimate(right_T, drawn_T, size)
        for metric, name, estimate in (("pass", "pass@", pass_at_k), ("pass_hat", "pass^", pass_hat_k))
        if metric in suite.metrics
        for size in _sizes(suite.samples)
    }


def _sizes(samples: int) -> list[int]:
    """Powers of two below the number of samples, and that."""
    return sorted({min(samples, 1 << power) for power in range(1, samples.bit_length() + 1)})


def _majority(task: Task, answers: Sequence[JudgedAnswer], marks: np.ndarray) -> float:
    votes = [None if answer.failure else VOTES[task.verifier](answer.text) for answer in answers]
    return majority_vote(votes, marks.astype(bool).tolist())


def _best(size: int, value: Callable[[JudgedAnswer], float | None]) -> _OfTask:
    """The score of the answer with the largest value among ``size``; one without a value is picked last."""

    def of_task(task: Task, answers: Sequence[JudgedAnswer], marks: np.ndarray) -> float:
        values = [-math.inf if (known := value(answer)) is None else known for answer in answers]
        return best_of_n(values, marks, size)

    return of_task
