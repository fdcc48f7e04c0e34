"""The records of a stage in worker processes: each is leased, tried again where a machine failed, and ends once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
import itertools
import json
from pathlib import Path
from typing import Any

from k2jax.agents.collect.lease_table import Ended, Lease
from k2jax.agents.collect.scheduling import LeaseScheduler
from k2jax.agents.collect.wire_messages import Key, LeaseOrder
from k2jax.synthesize.kept_results import StageResult


class StagePool(LeaseScheduler):
    """Runs stages on records while ``async with`` lasts; workers start with the first.

    Args:
        folder: of the workers' job.
        config: fields of the config.
        replay: see ``StageRunner``.
        choices: see ``LeaseScheduler``.
    """

    worker = "k2jax.synthesize.record_worker:RecordWorker"

    def __init__(self, folder: Path, config: Mapping[str, Any], replay: str, **choices: Any):
        options = {"config": config, "replay": replay}
        super().__init__(folder, runner="k2jax.synthesize.record_worker:StageRunner", options=options, **choices)
        self._numbers = itertools.count()
        self._texts: dict[Key, str] = {}
        self._ends: asyncio.Queue[StageResult | str | Exception] = asyncio.Queue()

    @property
    def needed(self) -> bool:
        """Workers are replaced at all times: the next stage is on the way."""
        return True

    async def results(
        self, stage: str, asked: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> AsyncIterator[StageResult | str]:
        """The result of every record as it comes; of one that failed again and again, why.

        Args:
            stage: its name.
            asked: keys and records, the first of which begin first.

        Raises:
            UserError: the stage cannot work, or workers do not start.
            RuntimeError: a worker met an error that is a mistake of the program.
        """
        for key, record in asked:
            name = (0, next(self._numbers), 0)
            self._texts[name] = json.dumps({"stage": stage, "key": key, "record": record}, ensure_ascii=False)
            self._table.add(name, name)
        await self.hire()
        self._pump_soon()
        for _ in asked:
            end = await self._ends.get()
            if isinstance(end, Exception):
                raise end
            yield end

    def order(self, lease: Lease) -> LeaseOrder:
        """See ``LeaseScheduler``."""
        return LeaseOrder(lease.number, lease.task, -1, text=self._texts[lease.task])

    def ended(self, ended: Ended) -> None:
        """See ``LeaseScheduler``."""
        del self._texts[ended.task]
        if ended.end == "done":
            _, data = ended.result
            self._ends.put_nowait(StageResult.from_json(json.loads(data)))
        else:
            self._ends.put_nowait(ended.reason or "its workers were lost")

    def fail(self, error: Exception) -> None:
        """See ``LeaseScheduler``."""
        self._ends.put_nowait(error)
