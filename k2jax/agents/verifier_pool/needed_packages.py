"""Packages that verifiers and datasets need beside this project's, so that one is missed before anything is asked."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from k2jax.errors import UserError

_Verifier = TypeVar("_Verifier", bound=Callable[..., Any])


class NeededPackages(NamedTuple):
    """Packages, and how a user gets them.

    Attributes:
        what: needs them, for messages.
        modules: names under which they are imported; the first is the one that others come with.
        install: the commands that install them.
    """

    what: str
    modules: tuple[str, ...]
    install: str

    def load(self) -> ModuleType:
        """Imports all of them; returns the first.

        Raises:
            UserError: one is not installed, or something that it imports.
        """
        try:
            first, *_ = [import_module(name) for name in self.modules]
        except ImportError as error:
            raise self.missing(error.name or self.modules[0]) from None
        return first

    def folder(self) -> Path:
        """The folder of the first, of packages that are not imported.

        Raises:
            UserError: one is not installed.
        """
        found = {name: importlib.util.find_spec(name) for name in self.modules}
        for name, spec in found.items():
            if spec is None or not spec.origin:
                raise self.missing(name)
        return Path(found[self.modules[0]].origin).parent

    def missing(self, name: str) -> UserError:
        """What a user is told where the module of a name cannot be imported."""
        return UserError(f"{self.what} needs the package {name}, which is not installed: {self.install}")


def needs(load: Callable[[], object]) -> Callable[[_Verifier], _Verifier]:
    """Declares what a verifier needs, a function or a class.

    ``load`` is called in every process of verifiers when the verifier is loaded there, before the time of its verdicts
    begins. Commands have all verifiers of their tasks loaded before they ask a model or train; a UserError of ``load``
    ends them then, with its line.

    Example:
        >>> PACKAGES = NeededPackages("riddles", ("riddle_package",), "pip install riddle-package")
        >>> @needs(PACKAGES.load)
        ... def riddle(task, answer):
        ...     return Reward(float(PACKAGES.load().is_right(answer)))

    Args:
        load: imports packages and looks for files; it raises UserError where something is missing.
    """

    def declare(verifier: _Verifier) -> _Verifier:
        verifier.load_needs = staticmethod(load) if isinstance(verifier, type) else load  # type: ignore[attr-defined]
        return verifier

    return declare
