"""What an algorithm adds to the loop: a method, with a hook at each place where the loop asks.

The loop, the sampler and the trainer know no algorithm by name. They call the hooks of a run's methods in the order of
``k2jax.rl.methods.METHODS``; by default a hook does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from k2jax.agents.mixture import DrawnTask, TaskMixture
from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.inference import ContinuousClient
from k2jax.inference.engine import Engine
from k2jax.losses.base import Loss
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.followers.commands import ALONE, Commands
from k2jax.rl.groups import PromptGroup
from k2jax.rl.methods.scoring_pass import ScoringPass
from k2jax.rl.packing.rows import PackedRows
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.rl.sampler import Sampler
from k2jax.text.chat import ChatFormat
from k2jax.text.tokenizer import Tokenizer
from k2jax.train.program import Program
from k2jax.train.run import Run


@dataclasses.dataclass(kw_only=True)
class Parts:
    """What a run has opened when its methods are made.

    Attributes:
        config: the experiment.
        workdir: of the run.
        tokenizer: the policy's.
        chat: the policy's conversations.
        mixture: the prompts.
        program: mesh, loss and compiled functions.
        event_loop: on which episodes run.
        opened: closes what a method opens, when the run ends.
        identity: fingerprints of what must not change between starts, by the name that a message gives it; a method
            adds those of what it reads.
        make_client: what makes the client of the sampler ``workers``, see ``open_rl``.
        commands: that processes of the run have in common.
        run: the run; None until methods are made, and set before the first hook.
    """

    config: Config
    workdir: Path
    tokenizer: Tokenizer
    chat: ChatFormat
    mixture: TaskMixture
    program: Program
    event_loop: EventLoop
    opened: contextlib.ExitStack
    identity: dict[str, str]
    make_client: Callable[[Engine], ContinuousClient] = ContinuousClient
    commands: Commands = ALONE
    run: Run | None = None

    def score(self, rows: Sequence[PackedBatch]) -> np.ndarray:
        """Log-probabilities ``[rows, S]`` of rows ``[S]`` by a forward pass with the weights as they are [nats]."""
        return self._scoring.score_rows(self.run.state.params, rows)

    @functools.cached_property
    def _scoring(self) -> ScoringPass:
        # It drops rows of the exchange of experts where a training step would: that is noise of the policy, too.
        return ScoringPass(self.config, self.program.mesh, self.config.parallel.expert_slots)


def refuse_images(config: Config, key: str, is_set: bool) -> None:
    """Raises UserError where a key is set that is not built for a model with vision."""
    if is_set and config.model.vision.layers:
        raise UserError(f"config.{key} is not built for a model with vision (config.model.vision.layers); unset it")


class Method:
    """An algorithm beside the policy's loss.

    Attributes:
        scope: what ``rewards`` sees: ``group``: each scored group by itself when it goes to the trainer; ``iteration``:
            all complete groups at once when their responses are generated, while verifiers still judge.
        has_signal: whether it gives tokens a gradient of its own, so that updates whose advantages are all 0 are done.
    """

    scope: ClassVar[Literal["group", "iteration"]] = "group"
    has_signal: ClassVar[bool] = False

    @staticmethod
    def used(config: Config) -> bool:
        """Whether a run has this method."""
        raise NotImplementedError

    @staticmethod
    def check(config: Config) -> None:
        """Rejects what the method cannot do, before anything is opened; also called where it is not used.

        Raises:
            UserError: in one line that names the keys.
        """

    @staticmethod
    def terms(config: Config) -> tuple[Loss, ...]:
        """Further terms of the loss, each with a denominator of its own."""
        return ()

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> Method:
        """The method of a run that has it; ``methods`` become those of the run, this one among them."""
        raise NotImplementedError

    def begin(self, run: Run, sampler: Sampler) -> None:
        """Called once before the first iteration of a process, behind ``restore``.

        What is done once in a run, such as a measurement of the initial policy, is left out where ``restore`` has
        brought its result.
        """

    async def rewards(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Judges responses, or adds ``RewardTerm`` entries to ``group.terms``, whose sum advantages are made of."""

    def prompts(self, step: int, groups: Sequence[PromptGroup]) -> Sequence[DrawnTask]:
        """Further prompts of an iteration, made of its scored groups; their groups are trained on with these."""
        return ()

    def samples(self, group: PromptGroup, advantages_K: np.ndarray) -> Sequence[TrainingSample]:
        """What is trained on besides the responses of a group, whose advantages are float32 ``[K]``."""
        return ()

    def prepare(self, step: int, updates: Mapping[int, PackedRows]) -> Mapping[int, PackedRows]:
        """All updates of an iteration by number, before the first of them changes the weights."""
        return updates

    def before_update(self, step: int, number: int, rows: list[PackedBatch]) -> list[PackedBatch] | None:
        """The rows ``[S]`` of an update that comes next; None leaves it out."""
        return rows

    def record(self, step: int, groups: Sequence[PromptGroup]) -> Mapping[str, Any]:
        """Metrics of an iteration, when the engine has its weights."""
        return {}

    async def evaluate(self, groups: Sequence[PromptGroup]) -> Mapping[str, float]:
        """Metrics of an evaluation's answers to held-out tasks, besides how many are right."""
        return {}

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps, by names that no other method has."""
        return {}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continues from what ``extra`` of all methods returned.

        Raises:
            UserError: the checkpoint lacks what cannot be had again.
        """


class Methods(list[Method]):
    """The methods of a run, in order; each function calls the hook of its name on all of them."""

    @property
    def has_signal(self) -> bool:
        """Whether any of them has."""
        return any(method.has_signal for method in self)

    def begin(self, run: Run, sampler: Sampler) -> None:
        """Opens the run's logs, and begins every method unless the run is done already."""
        if run.begin():
            for method in self:
                method.begin(run, sampler)

    async def rewards(self, step: int, groups: Sequence[PromptGroup], scope: str) -> None:
        """Calls those of a scope, with all groups or with one at a time."""
        calls = [groups] if scope == "iteration" else [[group] for group in groups]
        for call in calls:
            for method in self:
                if method.scope == scope:
                    await method.rewards(step, call)

    def prompts(self, step: int, groups: Sequence[PromptGroup]) -> list[DrawnTask]:
        """Those of all methods."""
        return [prompt for method in self for prompt in method.prompts(step, groups)]

    def samples(self, group: PromptGroup, advantages_K: np.ndarray) -> list[TrainingSample]:
        """Those of all methods."""
        return [sample for method in self for sample in method.samples(group, advantages_K)]

    def prepare(self, step: int, updates: Mapping[int, PackedRows]) -> Mapping[int, PackedRows]:
        """The updates as the last method leaves them."""
        for method in self:
            updates = method.prepare(step, updates)
        return updates

    def before_update(self, step: int, number: int, rows: list[PackedBatch]) -> list[PackedBatch] | None:
        """The rows as the last method leaves them; None where one leaves the update out."""
        for method in self:
            if (rows := method.before_update(step, number, rows)) is None:
                return None
        return rows

    def record(self, step: int, groups: Sequence[PromptGroup]) -> dict[str, Any]:
        """The metrics of all methods."""
        return {name: value for method in self for name, value in method.record(step, groups).items()}

    async def evaluate(self, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """The metrics of all methods."""
        return {name: value for method in self for name, value in (await method.evaluate(groups)).items()}

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps of all methods."""
        return {name: value for method in self for name, value in method.extra().items()}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restores every method."""
        for method in self:
            method.restore(extra)
