"""What texts are compared by: names, numbers, words and equations, read without knowing what the text is about."""

from __future__ import annotations

import re
from typing import NamedTuple

from k2jax.text.common_words import COMMON_WORDS, FUNCTION_WORDS, NUMBER_WORDS
from k2jax.text.sentences import sentences_of

_WORD = re.compile(r"[^\W\d_]+(?:[-'][^\W\d_]+)*")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*|(?<=[-+*/(=])\d+(?:[.,]\d+)*|\d+(?=[a-z]\b)")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_MATH = re.compile(r"\d+(?:\.\d+)?[a-z]?(?![^\W_])|(?<![^\W_])[a-z](?![^\W_])|[-+*/^()=]")
_OPERAND = re.compile(r"[\da-z]")
_SPELLED = re.compile(r"[a-z]+|[^\sa-z-]")
_MARKS = str.maketrans("\u2019\u2018\u201c\u201d\u2013\u2014\u2212\u00b7\u00d7\u2022", "''\"\"---***")
STEM = 5
"""Letters of a word by which it is compared."""


class TextContent(NamedTuple):
    """What a text names.

    Attributes:
        names: words in capitals, but those that may have them for another reason.
        doubtful: words at the beginning of a sentence, alone, which may be names.
        numbers: in digits or words, plain.
        digits: those in digits.
        words: beginnings of the other words, without those that say nothing.
        lower: whole words that stand in lower case.
    """

    names: frozenset[str]
    doubtful: frozenset[str]
    numbers: frozenset[str]
    digits: frozenset[str]
    words: frozenset[str]
    lower: frozenset[str]


def plain_marks(text: str) -> str:
    """The text with simple quotation marks, dashes and signs in the place of typographic ones."""
    return text.translate(_MARKS)


def content_of(text: str) -> TextContent:
    """What a text with plain marks names.

    Args:
        text: with plain marks.
    """
    lower = frozenset(word for word in _WORD.findall(text) if word[0].islower())
    names: set[str] = set()
    doubtful: set[str] = set()
    words: set[str] = set()
    for sentence in sentences_of(text):
        at_beginning, found = True, list(_WORD.finditer(sentence))
        for match, following in zip(found, [*found, None][1:], strict=True):
            word = re.sub(r"'s?$", "", match[0])
            small = word.lower()
            if small != "one" and all(part in NUMBER_WORDS or part == "one" for part in small.split("-")):
                continue
            is_name = word[0].isupper() and word != "I"
            if is_name and at_beginning:
                is_name = small not in COMMON_WORDS and small not in lower
                if is_name and not _is_paired(match, following):
                    doubtful.add(word)
                    is_name = False
            if is_name:
                names.add(word)
            elif small not in FUNCTION_WORDS and len(small) > 2:
                words.add(small[:STEM])
            at_beginning = _begins_again(sentence, match.end())
    digits = frozenset(map(_plain, _NUMBER.findall(text)))
    return TextContent(
        frozenset(names), frozenset(doubtful - names), digits | _spelled(text), digits, frozenset(words), lower
    )


def _is_paired(match: re.Match[str], following: re.Match[str] | None) -> bool:
    """Whether the word is the first of a name of several, or has something of its own."""
    if match[0].endswith("'s"):
        return True
    is_next = following is not None and following.start() - match.end() == 1
    return is_next and following[0][0].isupper() and following[0] != "I"


def _begins_again(sentence: str, end: int) -> bool:
    """Whether what follows may have a capital without being a name: after a colon, a quotation mark or a bracket."""
    return bool(re.match(r"\s*[:;\"(\[*#-]\s*[\"(]*$|[:\"]|\s[\"(-]", sentence[end : end + 3]))


def equations_of(text: str) -> frozenset[str]:
    """The equations of a text, without their spaces."""
    text = plain_marks(text)
    found, run, end = set(), [], -1
    for token in [*_MATH.finditer(text), None]:
        is_operand = token is not None and bool(_OPERAND.match(token[0]))
        follows = token is not None and not text[end : token.start()].strip() and end >= 0
        if not follows or (is_operand and run and _OPERAND.match(run[-1])):
            while run and not _OPERAND.match(run[-1]) and run[-1] != ")":
                run.pop()
            if "=" in run[1:]:
                found.add("".join(run))
            run = []
        if token is not None and (run or is_operand or token[0] in "(-"):
            run.append(token[0])
        end = token.end() if token is not None else end
    return frozenset(found)


def _plain(number: str) -> str:
    """A number without its marks of thousands, and without zeros that say nothing."""
    plain = number.replace(",", "") if _THOUSANDS.fullmatch(number) else number.replace(",", ".")
    return plain.lstrip("0") or "0"


def _spelled(text: str) -> set[str]:
    """Numbers that are spelled out: ``twenty-one``, ``three hundred``, ``two thousand and five``."""
    numbers: set[str] = set()
    total, current = 0, None
    for token in [*_SPELLED.findall(text.lower()), ""]:
        value = 1 if token == "one" and current else NUMBER_WORDS.get(token)
        if token == "and" and current is not None and current % 100 == 0:
            continue
        is_tens = current is not None and current % 100 >= 20 and current % 10 == 0
        begins = value is not None and value < 100 and current and current % 100 and not (is_tens and value < 10)
        if (value is None or begins) and current is not None:
            numbers.add(str(total + current))
            total, current = 0, None
        if value is None:
            continue
        if value >= 1000:
            total, current = total + max(1, current or 0) * value, 0
        else:
            current = max(1, current or 0) * 100 if value == 100 else (current or 0) + value
    return numbers
