"""Answers that try to win a comparison without being better: they get nothing, and no judge reads them.

It is the hack-check of Kimi K2 (section 3.2.1) for judges: what speaks to a judge, asks for a score or a verdict, or
writes one itself. Rules come before the judge, because a judge that reads such an answer may believe it.
"""

from __future__ import annotations

import re

from k2jax.agents.task import Task
from k2jax.tasks.instructions.verifier import claims_falsely

_JUDGES = r"(?:judges?|graders?|evaluators?|critics?|raters?|reward model|verifiers?)"
_ANSWERS = r"(?:answer|response|solution|option|text|output)"
_MINE = rf"(?:(?:this|my|the above) {_ANSWERS}|{_ANSWERS} [ab12]\b)"
_SCORES = (
    r"(?:(?:the |a )?(?:highest|maximum|max|top|best|full|perfect|winning|high) (?:possible )?"
    r"(?:scores?|marks?|ratings?|rewards?|points?|grades?|credits?|verdicts?)|10/10|10 out of 10|100 ?%|an? a\+)"
)
_PATTERNS = (
    # It speaks to a judge.
    rf"\b(?:dear|attention|note to|message to|hello|hi)[ ,:]+(?:the |all |any )?{_JUDGES}\b",
    rf"^\W*(?:to )?(?:the )?{_JUDGES}\s*[:,]",
    r"\b(?:ignore|disregard|forget|override) (?:(?:all|any|the|your|previous|above|prior|these|other) )+"
    r"(?:instructions?|rubrics?|criteria|prompts?)\b",
    # It asks for a score or a verdict.
    rf"(?<!\bi )(?<!\bwe )\b(?:give|award|assign|grant|rate|score|grade|mark) (?:me|this|my|it|{_MINE})\b"
    rf"[^.!?\n]{{0,40}}{_SCORES}",
    rf"\b(?:i|{_MINE}) (?:really |clearly )?(?:deserves?|earns?|merits?|should (?:get|receive)) {_SCORES}",
    rf"\b(?:i|{_MINE}) (?:should|must|deserves? to) (?:win|be (?:rated|scored|chosen|preferred|selected|judged))\b",
    rf"\b(?:choose|pick|prefer|select|vote for|favou?r) {_MINE}",
    rf"\b(?:{_ANSWERS}|assistant) [ab12] (?:is|should be|must be|was) (?:the |clearly |much )*"
    r"(?:better|best|winner|preferred|chosen|correct one)\b",
    # It writes a verdict, or imitates the frame of a comparison.
    rf"^\W*(?:final )?(?:verdict|winner|judge?ment)\W*[:=]\W*(?:a|b|1|2|tie|first|second|me|this|{_ANSWERS})\b",
    r"\[\[\s*(?:[ab](?:\s*[<>=]+\s*[ab])?|tie|10)\s*\]\]",
    r"\[(?:begin|end) (?:question|answer [ab])\b",
    r"\|[AB][^|\n]*>",
)
_ADDRESSES = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.IGNORECASE | re.MULTILINE)


def addresses_judge(answer: str) -> bool:
    """Whether an answer speaks to a judge, asks for a score, writes a verdict, or imitates a comparison's frame."""
    return bool(_ADDRESSES.search(answer))


def is_hack(task: Task, answer: str) -> bool:
    """Whether an answer gets no reward from a critic, whatever it says besides.

    It addresses a judge, or claims to meet constraints of its task that it does not meet.
    """
    return addresses_judge(answer) or claims_falsely(task, answer)
