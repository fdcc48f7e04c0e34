"""What a gateway is told about a rollout before its agent starts."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
from typing import Any, get_args

from k2jax.agents.task import Budget
from k2jax.client import Sampling
from k2jax.errors import UserError, abbreviate
from k2jax.trajectory.types import Purpose

RESERVED = frozenset({"rollout", "side_call", "requests", "counts"})
"""What the gateway itself writes into the metadata of trajectories."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatewayRollout:
    """A rollout of a black-box agent.

    Attributes:
        task: id of the task.
        domain: the task's domain tag.
        key: (step, prompt, sample) of the trajectory; with ``purpose`` and ``sampling.seed`` it decides all random
            numbers.
        sampling: of every answer, whatever the client asks for; ``max_tokens`` is of one answer.
        budget: tokens over all answers, tokens over all prompts, and steps over the answers that are no side calls. A
            rollout has no sub-agents of its own, so its critical steps are its steps.
        declares_tools: whether the agent's own turns declare tools: a request without tools is then a side call (a
            title, a summary), a trajectory of its own.
        side_calls: most side calls that are answered; None is twice the steps and 8 more where these have a limit.
        train_side_calls: whether tokens of side calls are marked for training.
        metadata: JSON values, kept in the trajectory; not under the names of RESERVED.
        purpose: what the episode is for: ``train``, ``eval`` or ``budget``.
    """

    task: str
    domain: str = ""
    key: tuple[int, int, int] = (0, 0, 0)
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    budget: Budget = dataclasses.field(default_factory=Budget)
    declares_tools: bool = True
    train_side_calls: bool = False
    side_calls: int | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    purpose: Purpose = "train"

    def check(self) -> None:
        """Raises UserError for a value of the wrong type or out of range."""
        kinds: dict[str, type] = {"task": str, "domain": str, "declares_tools": bool, "train_side_calls": bool}
        wrong = [name for name, kind in kinds.items() if type(getattr(self, name)) is not kind]
        counts = {name: getattr(self.sampling, name) for name in ("max_tokens", "top_k", "seed")}
        budget = dataclasses.asdict(self.budget) | {"side_calls": self.side_calls}
        limits = {name: value for name, value in budget.items() if value is not None}
        wrong += [name for name, value in (counts | limits).items() if type(value) is not int or value < 0]
        wrong += ["stop_tokens"] * any(type(token) is not int or token < 0 for token in self.sampling.stop_tokens)
        wrong += ["metadata"] * (not isinstance(self.metadata, Mapping) or not RESERVED.isdisjoint(self.metadata))
        try:
            json.dumps(self.metadata, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            wrong.append("metadata")
        if wrong or not self.task:
            raise UserError(f"{wrong[0] if wrong else 'task'} of a rollout is missing or has a wrong value")
        self.sampling.check()
        if len(self.key) != 3 or any(type(part) is not int or part < 0 for part in self.key):
            raise UserError(f"key {abbreviate(self.key)} must be (step, prompt, sample), three numbers from 0")
        if self.purpose not in get_args(Purpose):
            raise UserError(f"purpose {abbreviate(self.purpose)} of a rollout must be {', '.join(get_args(Purpose))}")
        if self.sampling.return_experts or self.sampling.prompt_logprobs or self.sampling.top_logprobs:
            raise UserError(
                "a gateway records tokens and their log-probabilities; leave out return_experts, prompt_logprobs and "
                "top_logprobs"
            )

    def limits(self) -> dict[str, int]:
        """What all recorded answers may use: those of ``steps``, ``side_calls`` and ``prompt_tokens`` with a limit."""
        budget = self.budget
        of_steps = (budget.steps, budget.critical_steps, budget.total_steps)
        steps = min((limit for limit in of_steps if limit is not None), default=None)
        side_calls = self.side_calls if self.side_calls is not None or steps is None else 2 * steps + 8
        limits = {"steps": steps, "side_calls": side_calls, "prompt_tokens": budget.prompt_tokens}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def to_json(self) -> dict[str, Any]:
        """The values as JSON; ``from_json`` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> GatewayRollout:
        """Reads what ``to_json`` returned; fields that are left out have their defaults.

        Raises:
            UserError: a value is wrong.
        """
        try:
            values = dict(values)
            values["sampling"] = Sampling.from_json(values.get("sampling") or {})
            values["budget"] = Budget.from_json(values.get("budget") or {})
            values["key"] = tuple(values.get("key") or (0, 0, 0))
            spec = cls(**values)
            spec.check()
        except (TypeError, ValueError) as error:
            raise UserError(f"this describes no rollout: {abbreviate(str(error), 200)}") from None
        return spec
