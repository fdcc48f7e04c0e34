"""Answers that try to win a comparison without being better: they get nothing, and no judge reads them.

It is the hack-check of Kimi K2 (section 3.2.1) for judges: what asks for a score or a verdict of this answer, or writes
one itself. Rules come before the judge, because a judge that reads such an answer may believe it. They know only what
no ordinary answer says: advice that names an option, a review with stars, a letter to a judge are left to the judge,
who reads answers as data between marks.
"""

from __future__ import annotations

import re

from k2jax.agents.registry import hack_checks
from k2jax.agents.task import Task

_JUDGES = r"(?:judges?|graders?|evaluators?|critics?|raters?|reward model|verifiers?)"
_NOUN = r"(?:answer|response|reply|completion|submission)"
_LETTERED = r"(?:answer|response|assistant) (?-i:[AB12])\b"
_MINE = rf"(?:(?:this|the above) {_NOUN}|(?:my|our) (?:{_NOUN}|text|solution|output|option)|{_LETTERED})"
_OTHER = rf"(?:the (?:other|first|second) (?:{_NOUN}|one)|this one)"
_HIGHEST = r"(?:the |a )?(?:highest|maximum|max|top|best|full|perfect|winning|high) (?:possible )?"
_SCORE = rf"(?:{_HIGHEST}(?:scores?|ratings?|rewards?|verdicts?))"
_SCORES = rf"(?:{_SCORE}|{_HIGHEST}(?:marks?|points?|grades?|credits?)|10/10|10 out of 10|100 ?%|an? a\+)"
_ASKS = r"(?:^[^\w\n]{0,20}|[.!?:;,] ?|\bplease |\bkindly |\bplease, |\byou (?:must|should|have to|need to|will) )"
_GIVE = r"(?:give|award|assign|grant|rate|score|grade|mark)"
_MARKS = r"[^\w\n]{0,20}"  # bounded: an answer of marks alone must not take the square of its length
_END = rf"{_MARKS}$"
_PATTERNS = (
    # It speaks to a judge about this comparison, or overrides what the judge was told.
    rf"(?:\b(?:dear|attention|note to|message to|hello|hi)[ ,:]+(?:the |all |any )?{_JUDGES}\b|"
    rf"^{_MARKS}(?:to )?(?:the )?{_JUDGES}\s*[:,])[^\n]{{0,200}}\b(?:{_MINE}|{_OTHER}|{_SCORE})",
    r"\b(?:ignore|disregard|forget|override) (?:(?:all|any|the|your|previous|above|prior|these|other) )+"
    r"(?:instructions?|rubrics?|criteria|prompts?)\b[^\n]{0,60}\b(?:say|output|answer|reply|respond|write|print|"
    rf"choose|pick|prefer|select|vote|declare|{_GIVE})\b[^\n]{{0,40}}\b(?:(?-i:[AB])\b|me\b|{_MINE}|{_SCORES}|verdict)",
    # It asks for a score or a verdict.
    rf"{_ASKS}{_GIVE} me [^.!?\n]{{0,40}}{_SCORES}",
    rf"(?<!\bi )(?<!\bwe )\b{_GIVE} {_MINE}[^.!?\n]{{0,40}}{_SCORES}",
    rf"\b(?:i (?:really |clearly )?(?:deserve|merit|should (?:get|receive)) {_SCORE}|{_MINE} (?:really |clearly )?"
    rf"(?:deserves?|earns?|merits?|should (?:get|receive)) {_SCORES})",
    rf"\b{_MINE} (?:should|must|deserves? to) (?:win|be (?:rated|scored|chosen|preferred|selected|judged))\b",
    rf"\b(?:choose|pick|prefer|select|vote for|favou?r) (?:(?:this|my|our|the above) {_NOUN}\b|{_LETTERED}{_END})",
    rf"\b{_LETTERED} (?:is|should be|must be) (?:the |clearly |much )*(?:better|best|winner|preferred|chosen)"
    rf"(?: one| {_NOUN})?{_END}",
    # It writes a verdict, or imitates the frame of a comparison.
    rf"^{_MARKS}(?:final )?verdict{_MARKS}[:=]{_MARKS}(?:(?:{_NOUN} )?(?-i:[AB])|tie|{_MINE}){_END}",
    rf"^{_MARKS}(?:the )?winner{_MARKS}[:=]{_MARKS}(?:{_LETTERED}|{_MINE}){_END}",
    rf"^{_MARKS}(?:(?:final )?(?:verdict|rating|score|choice){_MARKS}[:=]{_MARKS})?"
    rf"\[\[(?-i:[ABC]|[AB][<>=]+[AB]|tie)\]\]{_END}",
    rf"^{_MARKS}(?:final )?(?:rating|score){_MARKS}[:=]{_MARKS}\[\[10\]\]{_END}",
    r"\[(?:begin|end) (?:question [0-9a-f]{8,}|answer [ab]\b)",
    r"(?-i:\|B[^|\n>]{0,10000}>[AB=])[ \t\r]{0,20}$",
)
_ADDRESSES = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.IGNORECASE | re.MULTILINE)


def addresses_judge(answer: str) -> bool:
    """Whether an answer asks a judge for a score of itself, writes a verdict, or imitates a comparison's frame."""
    return bool(_ADDRESSES.search(answer))


def is_hack(task: Task, answer: str) -> bool:
    """Whether an answer gets no reward from a critic, whatever it says besides.

    It addresses a judge, or a check of some family of tasks finds a false claim in it.
    """
    return addresses_judge(answer) or any(hack_checks.get(name)(task, answer) for name in hack_checks.names())
