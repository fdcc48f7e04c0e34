"""What an episode may use."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from k2jax.errors import UserError, abbreviate, nearest


@dataclasses.dataclass(frozen=True)
class Budget:
    """What an episode may use; None is no limit.

    Attributes:
        tokens: tokens that the model samples, over all turns.
        steps: calls of tools; an answer that calls none is one step too. The call that is one too many is answered with
            an error, and no answer follows it.
        critical_steps: the longest chain of own steps and those of sub-agents (Kimi K2.5, section 3).
        total_steps: own steps and those of all sub-agents, stages counted as in critical steps.
        prompt_tokens: tokens of the prompts of all calls of the model, repeated ones counted again. The prompt with
            which they are reached is the last.
    """

    tokens: int | None = None
    steps: int | None = None
    critical_steps: int | None = None
    total_steps: int | None = None
    prompt_tokens: int | None = None

    @classmethod
    def from_json(cls, values: Any) -> Budget:
        """Reads limits by name; null is no limit.

        Raises:
            UserError: a limit is unknown, or no whole number from 0.
        """
        if not isinstance(values, Mapping):
            raise UserError(f"a budget is {abbreviate(values)}; write an object of limits")
        names = [field.name for field in dataclasses.fields(cls)]
        for name, limit in values.items():
            if name not in names:
                raise UserError(
                    f"a budget has no {abbreviate(name)}{nearest(str(name), names)}; it has {', '.join(names)}"
                )
            if limit is not None and (type(limit) is not int or limit < 0):
                raise UserError(f"the budget's {name} are {abbreviate(limit)}; write a whole number from 0, or null")
        return cls(**values)
