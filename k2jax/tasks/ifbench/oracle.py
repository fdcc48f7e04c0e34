"""The oracle of IFBench: for every instruction, and pair of instructions, a text that follows it and says nothing.

One of the benchmark's prompts contradicts itself: to answer with an option of two words, and to write every word on a
line of its own. Only the mode ``loose`` can be satisfied, which looks at parts of an answer for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import itertools
import re
from typing import Any

from k2jax.agents.environment import Message
from k2jax.agents.scaffolds.scripted import said
from k2jax.agents.task import Task
from k2jax.tasks.ifbench.texts import ALPHABET, CONJUNCTIONS, FIXED, NAMES, ODD_EVEN, TEXTS

Given = Mapping[str, Any]
Writer = Callable[[Given], str]


def ifbench_answer(task: Task, messages: Sequence[Message]) -> Message:
    """An answer that follows all of a task's instructions.

    Raises:
        KeyError: instructions that the benchmark's own tasks do not have, or not together.
    """
    names = tuple(sorted(name for name, _ in task.metadata["instructions"]))
    given = {key: value for _, values in task.metadata["instructions"] for key, value in values.items()}
    if text := TEXTS.get(names) or (FIXED.get(names[0]) if len(names) == 1 else None):
        return said(text)
    return said(_WRITERS[names](given))


def _unlike(count: int) -> list[str]:
    """So many different words without a meaning."""
    letters = itertools.product("bdfgklmnprstvz", "aeiou", "bdfgklmnprst", "aeiou", "bdklmnst")
    return ["".join(word) for word in itertools.islice(letters, 0, count * 41, 41)]


def _numbers(given: Given) -> str:
    return " ".join(str(number) for number in range(1, int(given["N"]) + 1))


def _range(given: Given, begin: str = "") -> str:
    """A text of the least number of words that is allowed, which begins as given."""
    missing = int(given["min_words"]) - len(re.findall(r"\w+", begin))
    return f"{begin} {' '.join(_unlike(missing))}".strip()


def _keywords(given: Given) -> str:
    words = [f"keyword{number}" for number in range(1, 6)]
    return " ".join(given[word] for word, times in zip(words, (1, 2, 3, 5, 7), strict=True) for _ in range(times))


def _sentences(given: Given, end: str = ".") -> str:
    """As many sentences as a keyword needs, all of which have it."""
    return " ".join(f"See {given['word']}{end}" for _ in range(int(given["N"])))


def _placed(given: Given) -> str:
    before = "Lamps burn. " * (int(given["n"]) - 1)
    return f"{before}{'birds ' * (int(given['m']) - 1)}{given['keyword']}"


def _japanese(given: Given) -> str:
    cycle = ["lamps"] * (int(given["N"]) - 1) + ["ランプ"]
    return " ".join(cycle * 2)


def _option(given: Given) -> str:
    """The option of the fewest words."""
    text = given["options"]
    separator = "/" if "/" in text else "or" if "or" in text else ","
    return min((option.strip() for option in text.split(separator)), key=lambda option: len(option.split()))


def _grown(given: Given, begin: str) -> str:
    """Sentences each of which is longer than the one before; the first has three words."""
    return f"{begin} {' '.join(_unlike(3 + int(given['small_n'])))}."


def _changed(given: Given) -> str:
    first, *others = given["prompt_to_repeat"].split()
    return " ".join([f"un{first}", *others])


def _span(given: Given) -> str:
    return " ".join(given["prompt_to_repeat"].split()[int(given["n_start"]) : int(given["n_end"])])


def _trigrams(text: str) -> set[str]:
    return {text[i : i + 3] for i in range(len(text) - 2)}


def _overlapping(given: Given, begin: str = "", usable: Callable[[str], bool] = lambda word: True) -> str:
    """A text of whose different trigrams a given share is in a reference.

    Words of the reference, and others of letters that it hardly has, are added in turn, whichever is missing.
    """
    reference, share = given["reference_text"], float(given["percentage"]) / 100
    known = _trigrams(reference)
    ours = iter([word for word in reference.split() if usable(word)])
    others = ("".join(word) for word in itertools.permutations("zqxjvkw", 5))
    text = begin
    for _ in range(2000):
        found = _trigrams(text)
        now = len(found & known) / len(found) if found else 0.0
        if len(found) >= 60 and abs(now - share) < 0.015:
            return text
        word = next(ours, None) if now < share else next(others)
        if word is None:
            break
        text = f"{text} {word}".strip()
    raise ValueError(f"no text has {share:.0%} of its trigrams in common with {reference[:40]!r}")


def _has_cluster(word: str) -> bool:
    return re.search("[bcdfghjklmnpqrstvwxyz]{2}", word.lower()) is not None


def _both(first: str, second: str) -> tuple[str, ...]:
    return tuple(sorted((first, second)))


_WRITERS: dict[tuple[str, ...], Writer] = {
    ("count:keywords_multiple",): _keywords,
    ("count:conjunctions",): lambda given: CONJUNCTIONS,
    ("words:keywords_specific_position",): _placed,
    ("words:words_position",): lambda given: f"The {given['keyword']} and {given['keyword']} lamps",
    ("count:numbers",): _numbers,
    ("count:unique_word_count",): lambda given: " ".join(_unlike(int(given["N"]))),
    ("count:person_names",): lambda given: " ".join(NAMES),
    ("count:pronouns",): lambda given: "they " * int(given["N"]),
    ("count:word_count_range",): _range,
    ("format:list",): lambda given: f"{given['sep']} lamps\n{given['sep']} birds",
    ("count:words_japanese",): _japanese,
    ("repeat:repeat_change",): _changed,
    ("repeat:repeat_span",): _span,
    ("sentence:keyword",): _sentences,
    ("format:options",): _option,
    ("ratio:overlap",): _overlapping,
    ("sentence:increment",): lambda given: _grown(given, "Lamps burn bright."),
    _both("count:numbers", "count:conjunctions"): lambda given: f"{_numbers(given)} {CONJUNCTIONS}",
    _both("count:numbers", "count:unique_word_count"): lambda given: f"{_numbers(given)} {' '.join(_unlike(400))}",
    _both("count:word_count_range", "format:list"): lambda given: _range(
        given, f"{given['sep']} lamps\n{given['sep']} birds\n{given['sep']}"
    ),
    _both("format:emoji", "sentence:keyword"): lambda given: _sentences(given, " 😀."),
    _both("format:list", "words:no_consecutive"): lambda given: f"{given['sep']} lamps\n{given['sep']} birds",
    _both("format:options", "format:newline"): lambda given: f"Yes\n{_option(given)}",
    _both("format:thesis", "count:word_count_range"): lambda given: _range(given, "<i>Lamps burn.</i>"),
    _both("ratio:overlap", "sentence:keyword"): lambda given: _overlapping(given, _sentences(given)),
    _both("sentence:increment", "format:thesis"): lambda given: _grown(given, "<i>Lamps</i> burn bright."),
    _both("sentence:keyword", "count:word_count_range"): lambda given: _range(given, _sentences(given)),
    _both("words:consonants", "ratio:overlap"): lambda given: _overlapping(given, usable=_has_cluster),
    _both("words:start_verb", "count:person_names"): lambda given: f"Consider {' '.join(NAMES)}",
    _both("words:consonants", "words:odd_even_syllables"): lambda given: ODD_EVEN,
    _both("words:alphabet", "format:parentheses"): lambda given: ALPHABET,
}
"""How to follow instructions that take values, by their names in order."""
