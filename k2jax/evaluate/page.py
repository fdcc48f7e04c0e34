"""A page of an evaluation: its scores, and every answer with its verdict. It loads nothing and runs nothing.

Answers, prompts and verdicts are whatever a model, a data set or a verifier wrote: all of it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
import json
from typing import Any, NamedTuple

from k2jax.agents.task import Task
from k2jax.evaluate.scores import SuiteScores, value_of
from k2jax.evaluate.statistics import MeanEstimate, PairedDifference
from k2jax.evaluate.suite import Suite
from k2jax.evaluate.suite_run import JudgedAnswer

LONGEST = 20_000
"""Characters of a message that are shown."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2430}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.2rem .7rem;border-bottom:1px solid #d8dde4;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}
details{border-left:4px solid #b8c0cc;margin:.3rem 0;padding:.1rem .7rem}
details.right{border-color:#2e9e5b}details.wrong{border-color:#d0443c}details.failed{border-color:#d99a1c}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f4f6f8;padding:.5rem;margin:.3rem 0}
.role{color:#67717f;font-size:13px}#wrong:checked~main details.right,#failed:checked~main details.right,
#failed:checked~main details.wrong{display:none}@media(prefers-color-scheme:dark){body{background:#14181e;color:#dfe5ec}
pre{background:#1e242c}td,th{border-color:#39424e}a{color:#8ab4f8}}
"""
_FILTER = "".join(
    f'<input type="radio" name="shown" id="{name}"{mark}><label for="{name}">{words}</label> '
    for name, mark, words in (
        ("all", " checked", "all answers"), ("wrong", "", "wrong and failed ones"), ("failed", "", "failed ones"),
    )
)  # fmt: skip


class SuiteOnPage(NamedTuple):
    """A suite and what came of it.

    Attributes:
        suite: the settings.
        tasks: in order.
        answers: by task and sample.
        scores: of the answers.
        difference: from another run, or None.
    """

    suite: Suite
    tasks: Sequence[Task]
    answers: Mapping[tuple[str, int], JudgedAnswer]
    scores: SuiteScores
    difference: PairedDifference | None


def report_page(model: str, suites: Mapping[str, SuiteOnPage], other: str = "") -> str:
    """The page as HTML.

    Args:
        model: whose answers they are.
        suites: by name.
        other: the run that they are compared with, or empty.
    """
    return "".join(_parts(model, suites, other))


def _parts(model: str, suites: Mapping[str, SuiteOnPage], other: str) -> Iterator[str]:
    yield f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(model)}</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"><style>{_STYLE}</style></head>'
    yield f"<body><h1>Evaluation of {escape(model)}</h1>{_FILTER}<main>"
    if len(suites) > 1:
        yield _overview(suites)
    for number, (name, shown) in enumerate(suites.items()):
        yield f'<h2 id="suite-{number}">{escape(name)}</h2>{_score_table(shown.scores)}'
        if shown.difference is not None:
            yield f"<p>Against {escape(other)}: {escape(difference_words(shown.difference))}</p>"
        for task in shown.tasks:
            for sample in range(shown.suite.samples):
                yield _answer(shown.suite, task, shown.answers[task.id, sample])
    yield "</main></body></html>\n"


def _overview(suites: Mapping[str, SuiteOnPage]) -> str:
    """The first score of each suite, with a link to the rest."""
    rows = ["<tr><th>suite</th><th>score</th><th>tasks</th><th>failed answers</th></tr>"]
    for number, (name, shown) in enumerate(suites.items()):
        kind, score = next(iter(shown.scores.scores.items()))
        failed = sum(bool(answer.failure) for answer in shown.answers.values())
        cells = (f"{kind} {score_words(score)}", f"{shown.scores.tasks:,}", f"{failed:,}")
        numbers = "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells)
        rows.append(f'<tr><td><a href="#suite-{number}">{escape(name)}</a></td>{numbers}</tr>')
    return f"<table>{''.join(rows)}</table>"


def score_words(score: MeanEstimate) -> str:
    """A score with its error and interval."""
    return f"{score.value:.4f} ± {score.error:.4f} [{score.low:.4f}, {score.high:.4f}]"


def difference_words(difference: PairedDifference) -> str:
    """A difference with its interval, and whether it is noise."""
    words = f"accuracy {difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}] on "
    words += f"{difference.tasks:,} tasks that both have"
    if difference.left_out:
        words += f" ({difference.left_out:,} others left out)"
    return f"{words}. {'The difference is noise: its interval holds 0.' * difference.is_noise}".rstrip(". ") + "."


def _score_table(scores: SuiteScores) -> str:
    rows = [(name, score_words(score)) for name, score in scores.scores.items()]
    rows += [(f"accuracy of {name}", score_words(score)) for name, score in scores.domains.items()]
    rows += [(f"judge: {name}", score_words(score)) for name, score in scores.judge.items()]
    rows.append(("standard error by bootstrap", f"{scores.bootstrap_error:.4f}"))
    rows.append(("tasks, answers to each", f"{scores.tasks:,}, {scores.samples:,}"))
    rows.append(("tokens read, written", f"{scores.tokens['read']:,}, {scores.tokens['written']:,}"))
    rows.append(("seconds", f"{scores.seconds:,.1f}"))
    if scores.cost:
        rows.append(("cost", f"{scores.cost:,.4f}"))
    rows += [(f"answers: {kind}", f"{count:,}") for kind, count in scores.failures.items()]
    if scores.unasked:
        rows.append(("answers: not asked, for the token budget was used up", f"{scores.unasked:,}"))
    cells = "".join(f'<tr><td>{escape(name)}</td><td class="n">{escape(value)}</td></tr>' for name, value in rows)
    return f"<table>{cells}</table>"


def _answer(suite: Suite, task: Task, answer: JudgedAnswer) -> str:
    value = value_of(suite, answer)
    kind = "failed" if answer.failure else "right" if value == 1.0 else "wrong"
    verdict = f"{answer.failure}: {answer.error}" if answer.failure else f"score {answer.score:g}"
    title = f"{task.id} · {task.domain} · answer {answer.sample} · {verdict}" + " · cut" * answer.cut
    if answer.graded is not None:
        title += f" · judge: {'right' if answer.graded else 'wrong'}"
    shown = answer.messages or [dict(message) for message in task.instruction]
    said = "".join(_message(message) for message in shown)
    info = json.dumps({"parts": answer.parts, "info": answer.info}, ensure_ascii=False, indent=1)
    took = (
        f"{answer.tokens:,} tokens written, {answer.prompt_tokens:,} read, {answer.seconds:.2f} s, {answer.tries} tries"
    )
    verdict = f'<div class="role">verdict · {escape(took)}</div><pre>{_cut(info)}</pre>'
    return f'<details class="{kind}"><summary>{_cut(title)}</summary>{said}{verdict}</details>\n'


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    if calls := message.get("tool_calls"):
        text += "\n" + json.dumps(calls, ensure_ascii=False, indent=1, default=str)
    return f'<div class="role">{escape(str(message.get("role")))}</div><pre>{_cut(text)}</pre>'


def _cut(text: str) -> str:
    left_out = len(text) - LONGEST
    return escape(text[:LONGEST]) + (f"… ({left_out:,} more characters)" if left_out > 0 else "")
