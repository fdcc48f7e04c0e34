"""A worker of a pipeline: what a stage makes of the records of its leases, as coroutines of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import json
from pathlib import Path
from typing import Any, Self

from k2jax.agents.collect.wire_messages import LeaseOrder, LeaseReport, WorkerMessage, pack_carried
from k2jax.agents.collect.worker import LeaseWorker, made_by
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.kept_results import KeptAnswers, StageResult
from k2jax.synthesize.pipelines import PIPELINES
from k2jax.synthesize.questions import AskedModel, Reply
from k2jax.synthesize.settings import opened_models, resolved
from k2jax.synthesize.stages import DroppedError, Made


class StageRunner:
    """Runs a pipeline's stages on single records, within ``async with``.

    Args:
        config: fields of the config.
        replay: folder of the run whose answers are taken instead of asking models; empty asks them.
    """

    def __init__(self, config: Mapping[str, Any], replay: str = ""):
        self._config = resolved(config)
        stages = [stage for stage in PIPELINES[self._config.pipeline].stages(self._config) if not stage.is_whole]
        self._work = {stage.name: made_by(stage.maker, **stage.options) for stage in stages}
        self._roles = tuple(dict.fromkeys(role for stage in stages for role in stage.roles))
        self._models: dict[str, AskedModel] = {}
        self._replayed: Callable[[str], Reply | None] | None = KeptAnswers(Path(replay)).get if replay else None

    async def __aenter__(self) -> Self:
        programs = PIPELINES[self._config.pipeline].programs(self._config)
        self._models = opened_models(self._config.models, programs, self._roles)
        return self

    async def __aexit__(self, *error: object) -> None:
        for model in self._models.values():
            await model.close()

    async def run(self, stage: str, key: str, record: Mapping[str, Any]) -> StageResult:
        """What a stage makes of a record.

        Args:
            stage: its name.
            key: content of the record and the stage.
            record: what it works on.

        Raises:
            InfrastructureError: a model has failed; the record is tried again.
            UserError: it cannot work; the run ends.
        """
        asker = Asker(self._models, key, self._replayed)
        try:
            made = await self._work[stage](record, asker)
        except DroppedError as error:
            made = Made([], [(str(error), record)])
        return StageResult(key, made, tuple(asker.calls))


class RecordWorker(LeaseWorker):
    """Carries out leases on records, whose results travel with the reports.

    Args:
        folder: of the pool, unused: nothing of a record lies in files.
        shard: number of the worker, unused.
        runner: of the stages.
    """

    def __init__(self, folder: Path, shard: int, runner: StageRunner):
        super().__init__()
        self._runner = runner

    async def carry_out(self, order: LeaseOrder) -> None:
        """See ``LeaseWorker``."""
        asked = json.loads(order.text)
        result = await self._runner.run(**asked)
        tokens = sum(call.reply.tokens for call in result.calls)
        report = LeaseReport(
            number=order.number, place=None, status="finished", reward=None, tokens=tokens, turns=len(result.calls)
        )
        self.connection.send(WorkerMessage.CARRIED, *pack_carried(report, json.dumps(result.to_json()).encode()))
