"""An evaluation in its folder: suites asked of one model, resumed where it was stopped, and written up at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import datetime
import json
import os
from pathlib import Path
import time
from typing import Any

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.client import ChatEndpoint
from k2jax.errors import UserError
from k2jax.evaluate.answerers import task_digest
from k2jax.evaluate.grader import Grader
from k2jax.evaluate.held_out import HeldOutSuites
from k2jax.evaluate.lm_eval_files import FOLDER as LM_EVAL
from k2jax.evaluate.lm_eval_files import write_lm_eval
from k2jax.evaluate.models import MakeAnswerer, ModelChoice, open_model
from k2jax.evaluate.page import SuiteOnPage, difference_words, report_page, score_words
from k2jax.evaluate.scores import Price, compare, complete_tasks, finite, score_suite, value_of
from k2jax.evaluate.statistics import PairedDifference
from k2jax.evaluate.suite import Suite, load_suite, suite_tasks
from k2jax.evaluate.suite_run import (
    AnswerLog,
    JudgedAnswer,
    first_error,
    missing_answers,
    read_answers,
    run_suite,
    tokens_of,
)
from k2jax.files.atomic import write_atomic
from k2jax.report.table import text_table

RESULTS = "results.json"
TIMES = "times.json"
"""When the evaluation began and what its answers took: apart from the results, which are the same in every run."""
PAGE = "report.html"
RUN = "run.json"
_INTERVAL = 5.0  # between two lines of progress [s]
_VERDICT_SECONDS = 60.0


class Evaluation:
    """Suites that are asked of a model, in a folder.

    Args:
        workdir: the folder; ``run.json`` there says what was asked of which model.
        names: of the suites, or files of them.
        choice: of the model.
        changes: settings that replace those of all suites.
        data: folder that stands for ``{data}`` in options of datasets.
        compare: workdir of another evaluation, or empty.
        held_out: suites of a run's held-out tasks beside those, or None.

    Raises:
        UserError: a suite or the model is impossible, or the folder has another evaluation.
    """

    def __init__(
        self,
        workdir: str,
        names: Sequence[str],
        choice: ModelChoice,
        *,
        changes: Mapping[str, Any],
        data: str = "data",
        compare: str = "",
        held_out: HeldOutSuites | None = None,
    ):
        self._folder, self._choice = Path(workdir), choice
        suites = {Path(name).stem: load_suite(name, **changes) for name in names}
        of_run = held_out.suites(changes) if held_out is not None else {}
        choice.check(suites | of_run)
        self._identity = self._recorded()
        day = self._identity["began"][:10]
        self._suites = {name: (suite, suite_tasks(suite, data, day)) for name, suite in suites.items()}
        if held_out is not None:
            self._suites |= {name: (suite, held_out.tasks(name, suite)) for name, suite in of_run.items()}
        self._digests = {
            name: {task.id: task_digest(task) for task in tasks} for name, (_, tasks) in self._suites.items()
        }
        self._check_identity()
        self._other = Path(compare) if compare else None
        self._compared = self._answers_of_other()

    async def run(
        self,
        at_once: int,
        *,
        sandbox: str = "bubblewrap",
        images: str = "",
        hosts: Sequence[str] = (),
        judge_url: str = "",
        judge_model: str = "",
    ) -> None:
        """Asks for all answers that are not on disk yet, and prints how far it is.

        Args:
            at_once: answers at a time.
            sandbox: backend of tools and verifiers.
            images: what tasks may choose their images from; see ``make_backend``.
            hosts: what tasks may choose the hosts from that their sandboxes reach.
            judge_url: of the server of verifiers that ask a model, or empty.
            judge_model: that server's name for its model.

        Raises:
            UserError: a task cannot be asked or judged, or the model does not answer at all.
        """
        missing = [name for name in self._suites if self._is_missing_answers(name)]
        if not missing:
            return
        environments = EnvironmentMaker(sandbox, images=images, repositories=None, hosts=hosts)
        key = os.environ.get("JUDGE_API_KEY") or None  # of its own: it may be another's server than the model's
        judge = (lambda: ChatEndpoint(judge_url, judge_model, api_key=key)) if judge_url else None
        if judge is None and (graded := [name for name in missing if self._suites[name][0].judge]):
            raise UserError(f"{graded[0]} has a judge grade answers: name it with --judge_url and --judge_model")
        workers = min(4, os.cpu_count() or 1)
        with VerifierPool(workers=workers, timeout=_VERDICT_SECONDS, retries=1) as pool:
            backend = make_backend(sandbox, images=images) if await self._needs_sandbox(pool) else None
            scorer = Scorer(pool, backend=backend, model=judge)
            async with open_model(self._choice, self._suites, environments) as make:
                await self._ask_all(missing, make, scorer, asyncio.Semaphore(at_once), judge)

    def write(self, price: Price) -> Iterator[str]:
        """Writes results, page and lm-eval's files; yields what there is to print."""
        shown = {name: self._on_page(name, price) for name in self._suites}
        yield from write_report(self._folder, self._identity, shown, str(self._other or ""))

    def _on_page(self, name: str, price: Price) -> SuiteOnPage:
        suite, tasks = self._suites[name]
        answers = read_answers(self._folder / name)
        difference = compare(suite, self._compared[name], answers) if name in self._compared else None
        scores, complete = score_suite(suite, tasks, answers, price), complete_tasks(suite, tasks, answers)
        return SuiteOnPage(suite, complete, answers, scores, difference)

    async def _ask_all(
        self,
        names: Sequence[str],
        make: MakeAnswerer,
        scorer: Scorer,
        places: asyncio.Semaphore,
        judge: Callable[[], ChatEndpoint] | None,
    ) -> None:
        """Asks suite after suite; one begins when all of the one before is asked, so that no engine waits for its last.

        The longest answers of a suite would otherwise be generated with few sequences at a time.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    all_asked = asyncio.Event()
                    group.create_task(self._ask(name, make, scorer, places, judge, all_asked))
                    await all_asked.wait()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None

    async def _ask(
        self,
        name: str,
        make: MakeAnswerer,
        scorer: Scorer,
        places: asyncio.Semaphore,
        judge: Callable[[], ChatEndpoint] | None,
        all_asked: asyncio.Event,
    ) -> None:
        suite, tasks = self._suites[name]
        log = AnswerLog(self._folder / name)
        progress = _Progress(name, suite, len(tasks) * suite.samples, log)
        options = {"log": log, "places": places, "report": progress.add, "token_budget": suite.token_budget}
        options["all_asked"] = all_asked
        try:
            async with contextlib.AsyncExitStack() as opened:
                if suite.judge and judge is not None:
                    options["grader"] = Grader(await opened.enter_async_context(judge()))
                await run_suite(tasks, self._digests[name], suite.samples, make(suite), scorer, **options)
        finally:
            log.close()
        print(progress.line(), flush=True)
        missing = len(list(missing_answers(tasks, suite.samples, log.answers)))
        if missing and _is_used_up(suite, log.answers):
            print(f"{name}: config.token_budget is used up; {missing:,} answers are not asked for", flush=True)

    def _is_missing_answers(self, name: str) -> bool:
        """Whether there is anything to ask, so that a finished evaluation opens no model."""
        suite, tasks = self._suites[name]
        answers = read_answers(self._folder / name)
        return not _is_used_up(suite, answers) and any(missing_answers(tasks, suite.samples, answers))

    async def _needs_sandbox(self, pool: VerifierPool) -> bool:
        judged = await pool.judged_by(task for _, tasks in self._suites.values() for task in tasks)
        return "episode in a sandbox" in judged

    def _recorded(self) -> dict[str, Any]:
        """What the folder says was asked, or what is to be asked now."""
        path = self._folder / RUN
        if path.exists():
            return json.loads(path.read_bytes())
        return new_identity(self._choice)

    def _check_identity(self) -> None:
        """Goes on only with the same model, settings and tasks; new suites may come to a folder."""
        model, recorded = self._choice.identity(), self._identity["model"]
        for key, value in json.loads(json.dumps(model)).items():
            if recorded.get(key) != value:
                raise UserError(
                    f"{self._folder} has an evaluation of another model: its {key} was {recorded.get(key)!r}, and is "
                    f"{value!r}; give another --workdir"
                )
        for name, (suite, tasks) in self._suites.items():
            asked = json.loads(json.dumps(_asked(suite, tasks, self._digests[name])))
            if (before := self._identity["asked"].setdefault(name, asked)) != asked:
                keys = [key for key, value in asked.items() if before.get(key) != value]
                raise UserError(
                    f"{self._folder} has other answers of the suite {name!r}: its {', '.join(keys)} changed; give "
                    "another --workdir"
                )
        write_atomic(self._folder / RUN, json.dumps(self._identity, indent=1) + "\n")

    def _answers_of_other(self) -> dict[str, dict[tuple[str, int], JudgedAnswer]]:
        """The answers of the other evaluation to the suites that both have."""
        if self._other is None:
            return {}
        answers = {name: read_answers(self._other / name) for name in self._suites}
        if not any(answers.values()):
            raise UserError(f"--compare: {self._other} has no answers to {' or '.join(self._suites)}")
        return {name: found for name, found in answers.items() if found}


def new_identity(choice: ModelChoice) -> dict[str, Any]:
    """What ``run.json`` says of an evaluation that begins now."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"model": choice.identity(), "began": now, "asked": {}}


def write_report(
    folder: Path, identity: Mapping[str, Any], shown: Mapping[str, SuiteOnPage], other: str = ""
) -> Iterator[str]:
    """Writes results, page and lm-eval's files of suites; yields what there is to print.

    Args:
        folder: of the files.
        identity: the model, and when the evaluation began.
        shown: suites by name.
        other: folder of the evaluation that they are compared with, or empty.
    """
    record: dict[str, Any] = {"format": 2, "model": identity["model"], "asked": identity["asked"], "suites": {}}
    model, rows = identity["model"]["model"], []
    times = {"began": identity["began"], "seconds": {name: each.scores.seconds for name, each in shown.items()}}
    for name, each in shown.items():
        record["suites"][name] = each.scores.record() | {"settings": dataclasses.asdict(each.suite)}
        if each.difference is not None:
            difference = finite(each.difference._asdict()) | {"is_noise": each.difference.is_noise}
            record["suites"][name]["difference"] = difference | {"other": other}
        for metric, score in each.scores.scores.items():
            interval = f"[{score.low:.4f}, {score.high:.4f}]"
            rows.append((name, metric, f"{score.value:.4f}", f"{score.error:.4f}", interval, each.scores.tasks))
    write_atomic(folder / RESULTS, json.dumps(record, indent=1) + "\n")
    write_atomic(folder / TIMES, json.dumps(times, indent=1) + "\n")
    write_atomic(folder / PAGE, report_page(model, shown, other))
    write_lm_eval(folder / LM_EVAL, model, identity["began"], shown)
    yield text_table(("suite", "metric", "score", "error", "95 % interval", "tasks"), rows)
    for name, each in shown.items():
        yield f"{name}: {_failures(each)}"
        if each.difference is not None:
            yield f"{name} against {other}: {difference_words(each.difference)}"
    yield str(folder / PAGE)


def _asked(suite: Suite, tasks: Sequence[Task], digests: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a suite, and its tasks; with a larger token budget it goes on."""
    settings = {name: value for name, value in dataclasses.asdict(suite).items() if name != "token_budget"}
    return settings | {"tasks": [digests[task.id] for task in tasks]}


def _is_used_up(suite: Suite, answers: Mapping[tuple[str, int], JudgedAnswer]) -> bool:
    return bool(suite.token_budget) and tokens_of(answers.values()) >= suite.token_budget


def _failures(shown: SuiteOnPage) -> str:
    scores = shown.scores
    failures = ", ".join(f"{count:,} {kind}" for kind, count in scores.failures.items())
    difference: PairedDifference | None = shown.difference
    warning = " (the difference is noise)" if difference is not None and difference.is_noise else ""
    tokens = f"{scores.tokens['written']:,} tokens written, {scores.tokens['read']:,} read"
    words = f"{tokens}, {scores.seconds:,.1f} s of answers; of {scores.tasks * scores.samples:,}: {failures}{warning}"
    if scores.judge:
        words += "; judge: " + ", ".join(f"{name} {score_words(score)}" for name, score in scores.judge.items())
    return words + (f"; {scores.unasked:,} answers not asked for, whose tasks are left out" if scores.unasked else "")


class _Progress:
    """Says how far a suite is, every few seconds."""

    def __init__(self, name: str, suite: Suite, total: int, log: AnswerLog):
        self._name, self._suite, self._total, self._log = name, suite, total, log
        self._began = self._printed = time.monotonic()

    def add(self, answer: JudgedAnswer) -> None:
        if time.monotonic() - self._printed >= _INTERVAL:
            self._printed = time.monotonic()
            print(self.line(), flush=True)

    def line(self) -> str:
        answers = self._log.answers.values()
        right = sum(value_of(self._suite, answer) for answer in answers) / max(1, len(answers))
        failed = sum(bool(answer.failure) for answer in answers)
        tokens, seconds = sum(answer.tokens for answer in answers), time.monotonic() - self._began
        words = f"{self._name}: {len(answers):,} of {self._total:,} answers, {right:.3f} right, {tokens:,} tokens"
        return f"{words}, {failed:,} failed, {seconds:.0f} s"
