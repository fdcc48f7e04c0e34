"""lm-eval's tasks from a folder of YAML files, asked of a checkpoint, and what came of them as our results.

Each task, and each filter of one with several, is a suite of the report. lm-eval decides which answers are right; what
its metrics give for single documents gets errors clustered by document, the rest is as lm-eval computes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
import json
import logging
import math
import os
from pathlib import Path
import time
from typing import Any, NamedTuple

from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate
from k2jax.evaluate.answerers import task_digest
from k2jax.evaluate.evaluation import RUN, new_identity, write_report
from k2jax.evaluate.models import ModelChoice, open_engine_client, vocabulary_of
from k2jax.evaluate.page import SuiteOnPage
from k2jax.evaluate.scores import SuiteScores, compare
from k2jax.evaluate.statistics import CONFIDENCE, MeanEstimate, cluster_bootstrap, clustered_mean, t_quantile
from k2jax.evaluate.suite import Suite
from k2jax.evaluate.suite_run import AnswerLog, JudgedAnswer, read_answers
from k2jax.files.atomic import write_atomic
from k2jax.tasks.generated import user

NO_LM_EVAL = "lm-eval is not installed: pip install lm-eval"


class LMEvalTasks(NamedTuple):
    """What lm-eval is asked.

    Attributes:
        include_path: folder of its YAML files.
        names: of its tasks and groups there.
        count: of documents of each; 0 is all.
        as_chat: whether documents are asked as conversations.
    """

    include_path: str
    names: Sequence[str]
    count: int
    as_chat: bool


def run_lm_eval(asked: LMEvalTasks, make: Callable[[type], Any]) -> dict[str, SuiteOnPage]:
    """The results of lm-eval's tasks by name; nothing is fetched from a hub.

    Args:
        asked: the tasks.
        make: makes the model of the class ``K2JaxLM``, which lm-eval has to be there for.

    Raises:
        UserError: lm-eval is not installed, or knows no such task there, or cannot ask it.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    try:
        from lm_eval.evaluator import simple_evaluate
        from lm_eval.tasks import TaskManager

        from k2jax.evaluate.harnesses.lm_eval_model import K2JaxLM
    except ImportError as error:
        raise UserError(f"{NO_LM_EVAL} ({abbreviate(str(error))})") from None
    if not Path(asked.include_path).is_dir():
        raise UserError(f"--include_path: {asked.include_path!r} is no folder of lm-eval's YAML files")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=asked.include_path, include_defaults=False)
    if unknown := [name for name in asked.names if name not in manager.all_tasks]:
        raise UserError(f"{asked.include_path} has no task {unknown[0]!r}, only {', '.join(manager.all_tasks)[:200]}")
    began, model = time.monotonic(), make(K2JaxLM)
    try:
        found = simple_evaluate(
            model,
            tasks=list(asked.names),
            limit=asked.count or None,
            task_manager=manager,
            apply_chat_template=asked.as_chat,
            fewshot_as_multiturn=asked.as_chat,
            bootstrap_iters=1000,
        )
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"lm-eval: {abbreviate(str(error), 300)}") from None
    return _on_pages(found, model, time.monotonic() - began)


def evaluate_with_lm_eval(
    asked: LMEvalTasks, choice: ModelChoice, workdir: str, *, compared_with: str, at_once: int
) -> Iterator[str]:
    """Asks a checkpoint lm-eval's tasks, and writes answers and report into a new folder; yields what to print.

    Args:
        asked: the tasks.
        choice: the checkpoint, with ``max_length``.
        workdir: the folder.
        compared_with: workdir of another evaluation of these tasks, or empty.
        at_once: requests under way.

    Raises:
        UserError: the folder has an evaluation, the model is no checkpoint, or as of ``run_lm_eval``.
    """
    folder, chat = Path(workdir), None
    if (folder / RUN).exists():
        raise UserError(f"{folder} has an evaluation, and one by lm-eval does not go on; give another --workdir")
    if choice.is_server or choice.is_program or not choice.max_length:
        raise UserError("--harness=lm_eval asks a checkpoint with --max_length, the longest sequence of its engine")
    if asked.as_chat:
        _, chat = vocabulary_of(choice)
    with open_engine_client(choice) as (client, tokenizer):
        shown = run_lm_eval(
            asked, lambda model: model(client, tokenizer, choice.max_length, chat=chat, at_once=at_once)
        )
    for name, each in shown.items():
        log = AnswerLog(folder / name)
        for answer in each.answers.values():
            log.append(answer)
        log.close()
        if compared_with and (before := read_answers(Path(compared_with) / name)):
            shown[name] = each._replace(difference=compare(each.suite, before, each.answers))
    identity = new_identity(choice)
    write_atomic(folder / RUN, json.dumps(identity, indent=1) + "\n")
    yield from write_report(folder, identity, shown, compared_with)


def _on_pages(found: Mapping[str, Any], model: Any, seconds: float) -> dict[str, SuiteOnPage]:
    """Each task and filter with its documents."""
    shown = {}
    documents = sum(map(len, found["samples"].values()))
    for name, rows in found["samples"].items():
        by_filter = defaultdict(list)
        for row in rows:
            by_filter[row["filter"]].append(row)
        for kind, kept in by_filter.items():
            suite = name if len(by_filter) == 1 else f"{name}@{kind}"
            share = seconds * len(kept) / documents
            shown[suite] = _on_page(suite, kind, kept, found["results"][name], (model, share / len(kept)))
    return shown


def _on_page(
    suite: str, kind: str, rows: Sequence[Mapping[str, Any]], results: Mapping[str, Any], asked: tuple[Any, float]
) -> SuiteOnPage:
    rows = sorted(rows, key=lambda row: row["doc_id"])
    tasks = [_task(suite, row, asked[0]) for row in rows]
    answers = {(task.id, 0): _answer(task, row, *asked) for task, row in zip(tasks, rows, strict=True)}
    scores = {}
    for metric in rows[0]["metrics"]:
        values = [row[metric] for row in rows]
        if all(isinstance(value, bool | int | float) and math.isfinite(value) for value in values):
            scores[metric] = clustered_mean([float(value) for value in values], range(len(values)))
    for key, value in results.items():  # of all documents together, such as a perplexity
        metric, _, of_filter = key.partition(",")
        if of_filter == kind and not metric.endswith("_stderr") and metric not in scores:
            scores[metric] = _aggregate(value, results.get(f"{metric}_stderr,{kind}"), len(rows))
    main = [answer.score for answer in answers.values()]
    total = {name: sum(getattr(answer, key) for answer in answers.values()) for name, key in _TOKENS.items()}
    return SuiteOnPage(
        Suite(dataset=suite, metrics=()),
        tasks,
        answers,
        SuiteScores(
            scores=scores,
            domains={},
            bootstrap_error=cluster_bootstrap(main, range(len(main))).error,
            tasks=len(rows),
            samples=1,
            tokens={**total, "mean": total["written"] / len(rows)},
            seconds=asked[1] * len(rows),
            cost=0.0,
            failures={"machine": 0, "too long": 0, "cut": 0},
        ),
        None,
    )


_TOKENS = {"read": "prompt_tokens", "written": "tokens"}


def _task(suite: str, row: Mapping[str, Any], model: Any) -> Task:
    prompt = model.shown(next(_requests(row))[0])
    metadata = {"answer": str(row["target"]), "hash": row["doc_hash"]}
    return Task(f"{row['doc_id']}", suite, (user(prompt),), "lm_eval", metadata=metadata)


def _answer(task: Task, row: Mapping[str, Any], model: Any, seconds: float) -> JudgedAnswer:
    """A document's answer; its score is the first of lm-eval's metrics that is a number."""
    requests, resps = list(_requests(row)), [response for each in row["resps"] for response in each]
    text = resps[0] if isinstance(resps[0], str) else _chosen(requests, resps)
    numbers = {name: float(row[name]) for name in row["metrics"] if isinstance(row[name], bool | int | float)}
    said = [{"role": "assistant", "content": text}]
    return JudgedAnswer(
        task=task.id,
        sample=0,
        digest=task_digest(task),
        score=next(iter(numbers.values()), 0.0),
        parts=dict(list(numbers.items())[1:]),
        info={"target": str(row["target"]), "resps": resps, "filtered": [str(each) for each in row["filtered_resps"]]},
        cut=False,
        messages=[dict(message) for message in task.instruction] + said,
        text=text,
        prompt_tokens=sum(len(model.tok_encode("".join(map(str, request)))) for request in requests),
        tokens=len(model.tok_encode(text, add_special_tokens=False)) if isinstance(resps[0], str) else 0,
        likelihood=None,
        seconds=seconds,
        tries=1,
    )


def _requests(row: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The texts of a document's requests."""
    arguments = row["arguments"].values() if isinstance(row["arguments"], Mapping) else row["arguments"]
    for each in arguments:
        parts = each.values() if isinstance(each, Mapping) else each
        yield tuple(part for part in parts if isinstance(part, str))


def _chosen(requests: Sequence[tuple[str, ...]], resps: Sequence[Any]) -> str:
    """The continuation of the largest log-likelihood; of a text that is rolled over, none."""
    values = [each[0] if isinstance(each, Sequence) else each for each in resps]
    best = requests[values.index(max(values))]
    return best[1] if len(best) > 1 else ""


def _aggregate(value: Any, error: Any, documents: int) -> MeanEstimate:
    """A metric of all documents; lm-eval's own error, and an interval by Student's t."""
    error = float(error) if isinstance(error, int | float) else math.nan
    half = t_quantile(documents - 1, CONFIDENCE) * error if documents > 1 else math.inf
    return MeanEstimate(float(value), error, float(value) - half, float(value) + half, documents, documents)
