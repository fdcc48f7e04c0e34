"""The verifier of IFBench: the benchmark's own checkers, by the name of every instruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import functools
from importlib import import_module
import sys
from types import ModuleType
from typing import Any
from unittest import mock

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.agents.verifier_pool.needed_packages import needs
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.ifbench.dataset import PACKAGES
from k2jax.trajectory import Reward

_DATA = ("tokenizers/punkt_tab", "taggers/averaged_perceptron_tagger_eng", "corpora/stopwords")
"""Where nltk has the data that the checkers read."""


@needs(lambda: _checkers())
@judges_every_answer(lambda task: "Lamps burn, and birds sing.", worth=None)
def ifbench(task: Task, answer: str) -> Reward:
    """1 if all instructions are followed, else 0; the part ``held`` is the share that is.

    Raises:
        UserError: data that a checker reads is not installed.
    """
    checkers, mode = _checkers(), task.metadata["mode"]
    held = [
        any(
            _holds(checkers[name], name, given, text)
            for text in (loose_variants(answer) if mode == "loose" else [answer])
        )
        for name, given in task.metadata["instructions"]
    ]
    names = [name for name, _ in task.metadata["instructions"]]
    return Reward(
        float(all(held)),
        {"held": sum(held) / len(held)},
        {"held": [list(pair) for pair in zip(names, held, strict=True)]},
    )


def _holds(checker: Any, name: str, given: Mapping[str, Any], text: str) -> bool:
    """Whether a text follows an instruction; a text that a checker cannot read does not, as an empty one."""
    if not text.strip():
        return False
    instruction = checker(name)
    instruction.build_description(**given)
    for key in [key for key, value in given.items() if value == 0]:
        setattr(instruction, f"_{key}", 0)  # the checkers of spans take 0 for no value, and would draw one
    try:
        return bool(instruction.check_following(text))
    except LookupError as error:
        if "nltk" in str(error).lower():
            raise UserError(f"ifbench needs data of nltk: {abbreviate(' '.join(str(error).split()), 160)}") from None
        return False
    except (ArithmeticError, ValueError):
        return False


def loose_variants(answer: str) -> Iterator[str]:
    """The answer, without asterisks, and without its first line, its last line or both."""
    lines = answer.split("\n")
    for text in (answer, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))):
        yield from (text, text.replace("*", ""))


@functools.cache
def _checkers() -> Mapping[str, Any]:
    """The package's checkers by name, where everything is there that they read.

    It would fetch data at every use, and a model of spaCy that it does not use when it is imported; here it finds what
    is installed.
    """
    spacy, command = ModuleType("spacy"), ModuleType("spacy.cli")
    command.download = lambda name: None  # type: ignore[attr-defined]
    PACKAGES.load()
    nltk = import_module("nltk")
    nltk.download = lambda *names, **options: False  # type: ignore[attr-defined]
    try:
        for place in _DATA:
            nltk.data.find(place)
    except LookupError:
        names = " ".join(place.partition("/")[2] for place in _DATA)
        raise UserError(f"ifbench needs data of nltk: python -m nltk.downloader {names}") from None
    with mock.patch.dict(sys.modules, {"spacy": spacy, "spacy.cli": command}):
        return PACKAGES._replace(modules=("ifbench.instructions_registry",)).load().INSTRUCTION_DICT
