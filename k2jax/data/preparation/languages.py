"""The language of a text, by py3langid (extra ``lang``), whose model is in its wheel."""

from __future__ import annotations

from collections.abc import Iterable
import importlib
from types import ModuleType

from k2jax.errors import UserError, nearest

_READ = 4000
"""Characters of a text that decide."""


def language_of(text: str) -> str:
    """Code of two letters of the language that a text is most likely in.

    Raises:
        UserError: py3langid is not installed.
    """
    return str(_library().classify(text[:_READ])[0])


def check_languages(codes: Iterable[str], key: str) -> None:
    """Raises UserError for a code that is never given; ``key`` names it. See ``language_of``, too."""
    known = sorted(str(code) for code, _ in _library().rank("text"))
    for code in codes:
        if code not in known:
            raise UserError(f"{key} has {code!r}{nearest(code, known)}")


def _library() -> ModuleType:
    try:
        return importlib.import_module("py3langid")
    except ImportError:
        raise UserError('config.data.steps.languages needs py3langid: pip install "k2jax[lang]"') from None
