"""The data sets of environments of the package ``verifiers``, and the reward that their rubrics gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import json
from typing import Any

from k2jax.agents.environment import OUTCOME
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.split import Split, split_of
from k2jax.agents.task import Budget, Task
from k2jax.agents.verifier import Verifier
from k2jax.errors import UserError
from k2jax.tasks.verifiers.package import ENVIRONMENT, load_environment
from k2jax.trajectory import Reward, Trajectory


class VerifiersTasks:
    """The rows of an environment; the domain is ``verifiers/`` and the environment's name."""

    def __init__(
        self,
        environment: str,
        arguments: str = "{}",
        count: int = 0,
        steps: int = 0,
        split: Split = "train",
    ):
        """A set of tasks.

        Args:
            environment: name of an installed environment.
            arguments: of its ``load_environment``, a JSON object.
            count: the first so many rows; 0 is all.
            steps: of an episode, see ``Budget``; 0 leaves it to the environment.
            split: ``train``, or ``test`` for its rows for evaluation. Where it has rows of one kind only, a tenth of
                them is held out.
        """
        self._name, self._arguments, self._count, self._split = environment, arguments, count, split
        self._budget = Budget(steps=steps or None)

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the rows.

        Raises:
            UserError: the environment cannot be loaded, or a row is no JSON.
        """
        environment = load_environment(self._name, self._arguments)
        sources = environment.dataset_source, environment.eval_dataset_source
        divided = None not in sources
        use_held_out = self._split == "test" if divided else sources[0] is None
        rows = environment.get_eval_dataset() if use_held_out else environment.get_dataset()
        found = 0
        for row in rows:
            if not divided and split_of(_text(row.get("prompt"))) != self._split:
                continue
            yield self._task(found, row)
            found += 1
            if found == self._count:
                return

    def _task(self, number: int, row: Mapping[str, Any]) -> Task:
        try:
            values = json.loads(_text(row))
        except ValueError as error:
            raise UserError(f"the row {number} of the environment {self._name!r} is no JSON: {error}") from None
        prompt = values.get("prompt") or ()
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return Task(
            id=f"{self._split}/{number}",
            domain=f"verifiers/{self._name}",
            instruction=tuple({key: part for key, part in m.items() if part is not None} for m in messages),
            verifier="verifiers",
            environment="verifiers",
            budget=self._budget,
            metadata={ENVIRONMENT: {"environment": self._name, "arguments": self._arguments, "input": values}},
        )


def _text(value: Any) -> str:
    """A part of a row as JSON; what is no JSON is written as its text."""
    return json.dumps(value, default=str, ensure_ascii=False)


class RubricReward(Verifier):
    """The reward that the environment's rubric gave at the end of the episode; 0 for one that was cut before."""

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward, with the rubric's metrics as parts."""
        outcome = trajectory.metadata.get(OUTCOME)
        if outcome is None:
            return Reward(0.0, info={"cut": True})
        return Reward(outcome["reward"], dict(outcome["metrics"]), {"stop": outcome["stop"]})
