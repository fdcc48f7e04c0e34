"""The package ``verifiers`` of Prime Intellect: its environments by name, with errors that its rubrics hide.

Environments of its hub are Python packages with a function ``load_environment``. What is used here is the class
``Environment``, which version 0.1.14 brought to its present form and version 0.4 left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
import contextvars
import functools
import inspect
import json
import sys
from types import SimpleNamespace
from typing import Any

from k2jax.errors import UserError, abbreviate

ENVIRONMENT = "verifiers"
"""Key of a task's metadata: ``{"environment", "arguments", "input"}``, the input as the package's data sets have it."""
NO_VERIFIERS = (
    "environments of verifiers need that package: pip install 'k2jax[verifiers]' in an environment of its own"
)
"""What a user is told where the package is missing or of another version."""

reward_errors: contextvars.ContextVar[list[Exception]] = contextvars.ContextVar("reward_errors")
"""Where an episode's rewards leave what they raised; the package takes that for a reward of 0."""


def verifiers_package() -> Any:
    """The package.

    Raises:
        UserError: it is not installed, or in a version without ``Environment``.
    """
    try:
        import verifiers

        _leave_signals_alone(verifiers.Environment)
        return verifiers
    except (ImportError, AttributeError) as error:
        raise UserError(f"{NO_VERIFIERS} ({abbreviate(str(error))})") from None


@functools.lru_cache(maxsize=16)
def load_environment(name: str, arguments: str = "{}") -> Any:
    """An environment of the package; all episodes of this process share it, as the package means it.

    Args:
        name: of an installed environment, such as ``gsm8k`` or ``owner/gsm8k``.
        arguments: keyword arguments of its ``load_environment``, a JSON object.

    Raises:
        UserError: the package or the environment is not installed, does not take the arguments, or judges groups.
    """
    package = verifiers_package()
    try:
        values = json.loads(arguments)
        environment = package.load_environment(name, **values)
    except Exception as error:  # of whatever the environment's own module does
        reason = abbreviate(f"{type(error).__name__}: {error}", 300)
        raise UserError(f"the environment {name!r} of the package verifiers cannot be loaded: {reason}") from error
    if environment.requires_group_rollouts:
        raise UserError(f"the environment {name!r} judges the answers to a prompt together, which no verifier here can")
    for rubric in _rubrics(environment.rubric):
        rubric.funcs = [_watched(function) for function in rubric.funcs]
    return environment


def _rubrics(rubric: Any) -> Iterator[Any]:
    """A rubric and those of which it is made."""
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from _rubrics(part)


def _watched(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """A reward function that also leaves what it raises in ``reward_errors``."""

    @functools.wraps(function)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            reward_errors.get([]).append(error)
            raise

    return call


def is_machines_fault(error: BaseException | None) -> bool:
    """Whether an exception comes from a connection or a server, such as a judge's, and not from an odd answer."""
    while error is not None:
        modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        if isinstance(error, OSError) or modules & {"openai", "anthropic", "httpx", "aiohttp"}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _leave_signals_alone(environment: type) -> None:
    """Keeps environments from replacing this process's signal handlers, which only the main thread could do."""
    module = sys.modules[environment.__module__]
    signals = getattr(module, "signal", None)
    if signals is not None and not isinstance(signals, SimpleNamespace):
        module.signal = SimpleNamespace(**(vars(signals) | {"signal": lambda number, handler: None}))
