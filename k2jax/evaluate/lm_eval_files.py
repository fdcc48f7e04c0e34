"""An evaluation in the form of lm-eval's result files, for programs that read those: results and samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import hashlib
import json
from pathlib import Path
import re
from typing import Any

from k2jax.agents.task import Task
from k2jax.evaluate.page import SuiteOnPage
from k2jax.evaluate.scores import finite, value_of
from k2jax.evaluate.suite import Suite
from k2jax.evaluate.suite_run import JudgedAnswer
from k2jax.files.atomic import write_atomic, write_json_lines

FOLDER = "lm_eval"
METRIC = "acc"


def write_lm_eval(folder: Path, model: str, began: str, suites: Mapping[str, SuiteOnPage]) -> Path:
    """Writes ``results_DATE.json``, and ``samples_SUITE_DATE.jsonl`` of every suite.

    Args:
        folder: of the files; it is created.
        model: whose answers they are.
        began: date and time at which the evaluation began, in ISO's form.
        suites: by name.

    Returns:
        The file of the results.
    """
    date = re.sub(r"[^0-9T.-]", "-", began)
    folder.mkdir(parents=True, exist_ok=True)
    for name, shown in suites.items():
        write_json_lines(folder / f"samples_{name}_{date}.jsonl", _samples(shown))
    path = folder / f"results_{date}.json"
    write_atomic(path, json.dumps(finite(_results(model, began, suites)), indent=2) + "\n")
    return path


def _results(model: str, began: str, suites: Mapping[str, SuiteOnPage]) -> dict[str, Any]:
    results = {}
    for name, shown in suites.items():
        results[name] = {"alias": name}
        for metric, score in shown.scores.scores.items():
            key = METRIC if metric == "accuracy" else metric
            results[name] |= {f"{key},none": finite(score.value), f"{key}_stderr,none": finite(score.error)}
    return {
        "results": results,
        "group_subtasks": {name: [] for name in suites},
        "configs": {name: {"task": name, **dataclasses.asdict(shown.suite)} for name, shown in suites.items()},
        "versions": dict.fromkeys(suites, 1),
        "n-shot": {name: 0 for name in suites},
        "higher_is_better": {name: dict.fromkeys(_metrics(shown), True) for name, shown in suites.items()},
        "n-samples": {name: dict.fromkeys(("original", "effective"), len(each.tasks)) for name, each in suites.items()},
        "config": {"model": "k2jax", "model_args": {"model": model}},
        "date": began,
        "model_source": "k2jax",
        "model_name": model,
        "model_name_sanitized": re.sub(r"[\"<>:/|\\?*\[\]]+", "__", model),
    }


def _metrics(shown: SuiteOnPage) -> list[str]:
    return [METRIC if metric == "accuracy" else metric for metric in shown.scores.scores]


def _samples(shown: SuiteOnPage) -> Iterator[dict[str, Any]]:
    for number, task in enumerate(shown.tasks):
        answers = [shown.answers[task.id, sample] for sample in range(shown.suite.samples)]
        yield _sample(shown.suite, number, task, answers)


def _sample(suite: Suite, number: int, task: Task, answers: list[JudgedAnswer]) -> dict[str, Any]:
    prompt = json.dumps([dict(message) for message in task.instruction], ensure_ascii=False)
    doc = {"id": task.id, "domain": task.domain, "metadata": dict(task.metadata)}
    target, texts = str(task.metadata.get("answer", "")), [answer.text for answer in answers]
    return {
        "doc_id": number,
        "doc": doc,
        "target": target,
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"max_gen_toks": suite.max_tokens}}},
        "resps": [texts],
        "filtered_resps": texts,
        "filter": "none",
        "metrics": [METRIC],
        "doc_hash": _hash(json.dumps(doc, sort_keys=True, ensure_ascii=False, default=list)),
        "prompt_hash": _hash(prompt),
        "target_hash": _hash(target),
        METRIC: sum(value_of(suite, answer) for answer in answers) / len(answers),
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
