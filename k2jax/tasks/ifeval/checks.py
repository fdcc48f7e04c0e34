"""The 25 instructions of IFEval's published prompts, by their names there: whether a text follows each.

They take time in proportion to a text. Words of prompts are compared as they stand, where the original takes them for
regular expressions; sentences end by a rule where it asks nltk's model, and languages are those that py3langid finds
where it asks langdetect. ``tests/tasks/test_ifeval.py`` compares all of them with the original.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import json
import re
from typing import Any

from k2jax.agents.verifier_pool.needed_packages import NeededPackages

Given = Mapping[str, Any]
Check = Callable[[str, Given], bool]
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_ABBREVIATION = re.compile(r"(?:\b(?:[A-Za-z]|Mr|Mrs|Ms|Dr|St|Prof|Inc|Ltd|Jr|Sr|Co|vs|etc|e\.g|i\.e)|\.)$", re.I)
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"')\]\u201d\u2019]*+(?=\s|$)")
_CAPITAL = re.compile(r"[^\W_]+(?:[-'\u2019&][^\W_]+)*")
_BRACKETS = re.compile(r"\[[^\n\]]*+(\]?)")  # also those without an end, which would be looked for again and again
_POSTSCRIPTS = {"P.P.S": re.compile(r"p\.\s?p\.\s?s"), "P.S.": re.compile(r"p\.\s?s\.")}
_HIGHLIGHTS = (re.compile(r"\*[^\n*]*\*"), re.compile(r"\*\*[^\n*]*\*\*"))
LANGUAGES = NeededPackages("ifeval", ("py3langid",), "pip install py3langid")
_LONGEST = 20_000
"""Characters of a text whose language is looked for."""


def sentences(text: str) -> int:
    """Number of sentences; a period after an abbreviation or a single letter ends none, but at the end of a text."""
    count, begin, text = 0, 0, text.strip()
    for found in _SENTENCE_END.finditer(text):
        is_last = found.end() == len(text)
        before = text[max(begin, found.start() - 8) : found.start()]
        if is_last or found[0][0] != "." or not _ABBREVIATION.search(before):
            count, begin = count + 1, found.end()
    return count + bool(text[begin:].strip())


def language_of(text: str) -> str:
    """The code of a text's language.

    Raises:
        UserError: py3langid is not installed.
    """
    return str(LANGUAGES.load().classify(text[:_LONGEST].lower())[0])


def _compared(count: int, bound: int, relation: str) -> bool:
    return count < bound if relation == "less than" else count >= bound


def _placeholders(text: str) -> int:
    return sum(map(bool, _BRACKETS.findall(text)))


def _bullets(text: str) -> int:
    lines = [line.strip() for line in text.split("\n")]
    return sum(line.startswith("-") or (line[:1] == "*" and line[1:2] not in ("", "*")) for line in lines)


def _highlights(text: str) -> int:
    return sum(bool(found.strip("*").strip()) for pattern in _HIGHLIGHTS for found in pattern.findall(text))


def _sections(text: str, given: Given) -> bool:
    splitter = re.escape(given["section_spliter"])
    return len(re.findall(rf"{splitter}\s?\d+", text)) >= given["num_sections"]


def _paragraphs(text: str, given: Given) -> bool:
    parts = [bool(part.strip()) for part in text.split("***")]
    return all(parts[1:-1]) and sum(parts) == given["num_paragraphs"]


def _first_word(text: str, given: Given) -> bool:
    paragraphs = text.split("\n\n")
    count, place = sum(bool(part.strip()) for part in paragraphs), given["nth_paragraph"]
    if place > count or count != given["num_paragraphs"] or not (chosen := paragraphs[place - 1].split()):
        return False
    word = chosen[0].lstrip("'").lstrip('"')
    return re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower() == given["first_word"].lower()


def _postscript(text: str, given: Given) -> bool:
    marker, lowered = given["postscript_marker"], text.lower()
    return bool(_POSTSCRIPTS[marker].search(lowered)) if marker in _POSTSCRIPTS else marker.lower() in lowered


def _is_json(text: str, given: Given) -> bool:
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _has_title(text: str, given: Given) -> bool:
    for line in text.split("\n"):
        begin, end = line.find("<<"), line.rfind(">>")
        if begin >= 0 and begin + 3 <= end and line[begin : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def _two_responses(text: str, given: Given) -> bool:
    parts = [part.strip() for part in text.split("******")]
    said = [part for part in parts if part]
    return all(parts[1:-1]) and len(said) == 2 and said[0] != said[1]


def _occurrences(text: str, word: str) -> int:
    return len(re.findall(re.escape(word), text, re.IGNORECASE))


def _capital_words(text: str, given: Given) -> bool:
    count = sum(word.isupper() for word in _CAPITAL.findall(text))
    return _compared(count, given["capital_frequency"], given["capital_relation"])


def _forbidden(text: str, given: Given) -> bool:
    words = given["forbidden_words"]
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in words)


CHECKS: dict[str, Check] = {
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": lambda text, given: text.isupper() and language_of(text) == "en",
    "change_case:english_lowercase": lambda text, given: text.islower() and language_of(text) == "en",
    "combination:repeat_prompt": lambda text, given: (
        text.strip().lower().startswith(given["prompt_to_repeat"].strip().lower())
    ),
    "combination:two_responses": _two_responses,
    "detectable_content:number_placeholders": lambda text, given: _placeholders(text) >= given["num_placeholders"],
    "detectable_content:postscript": _postscript,
    "detectable_format:constrained_response": lambda text, given: any(answer in text for answer in _ANSWERS),
    "detectable_format:json_format": _is_json,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:number_bullet_lists": lambda text, given: _bullets(text) == given["num_bullets"],
    "detectable_format:number_highlighted_sections": lambda text, given: _highlights(text) >= given["num_highlights"],
    "detectable_format:title": _has_title,
    "keywords:existence": lambda text, given: all(_occurrences(text, word) for word in given["keywords"]),
    "keywords:forbidden_words": _forbidden,
    "keywords:frequency": lambda text, given: _compared(
        _occurrences(text, given["keyword"]), given["frequency"], given["relation"]
    ),
    "keywords:letter_frequency": lambda text, given: _compared(
        text.lower().count(given["letter"].lower()), given["let_frequency"], given["let_relation"]
    ),
    "language:response_language": lambda text, given: language_of(text) == given["language"],
    "length_constraints:nth_paragraph_first_word": _first_word,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_sentences": lambda text, given: _compared(
        sentences(text), given["num_sentences"], given["relation"]
    ),
    "length_constraints:number_words": lambda text, given: _compared(
        len(re.findall(r"\w+", text)), given["num_words"], given["relation"]
    ),
    "punctuation:no_comma": lambda text, given: "," not in text,
    "startend:end_checker": lambda text, given: (
        text.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower())
    ),
    "startend:quotation": lambda text, given: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
}
"""By the instruction's name: called with a text and the values of the prompt."""

VALUES: dict[str, Mapping[str, type]] = {
    "change_case:capital_word_frequency": {"capital_frequency": int, "capital_relation": str},
    "combination:repeat_prompt": {"prompt_to_repeat": str},
    "detectable_content:number_placeholders": {"num_placeholders": int},
    "detectable_content:postscript": {"postscript_marker": str},
    "detectable_format:multiple_sections": {"section_spliter": str, "num_sections": int},
    "detectable_format:number_bullet_lists": {"num_bullets": int},
    "detectable_format:number_highlighted_sections": {"num_highlights": int},
    "keywords:existence": {"keywords": list},
    "keywords:forbidden_words": {"forbidden_words": list},
    "keywords:frequency": {"keyword": str, "frequency": int, "relation": str},
    "keywords:letter_frequency": {"letter": str, "let_frequency": int, "let_relation": str},
    "language:response_language": {"language": str},
    "length_constraints:nth_paragraph_first_word": {"num_paragraphs": int, "nth_paragraph": int, "first_word": str},
    "length_constraints:number_paragraphs": {"num_paragraphs": int},
    "length_constraints:number_sentences": {"num_sentences": int, "relation": str},
    "length_constraints:number_words": {"num_words": int, "relation": str},
    "startend:end_checker": {"end_phrase": str},
}
"""Types of the values that an instruction has; others have none."""
