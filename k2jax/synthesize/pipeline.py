"""A run of a pipeline: every stage makes what it has not made yet, and writes what it kept for the next one.

The folder has ``stages/01_NAME/`` with ``results.log`` (all that was made and answered, by content) and ``out.jsonl``
(what the next stage works on), ``funnel.json``, ``funnel.png``, ``samples.html``, ``times.json`` (what differs between
two runs: seconds and costs), and the files that the pipeline exports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
from pathlib import Path
import time
from typing import Any, NamedTuple

from k2jax.agents.collect.launchers import LocalLauncher, RayLauncher
from k2jax.agents.collect.worker import made_by
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic, write_json_lines
from k2jax.synthesize.funnel import StageCounts, counts_of, funnel_picture, funnel_table
from k2jax.synthesize.kept_results import STAGES, KeptResults, StageResult
from k2jax.synthesize.pipelines import PIPELINES
from k2jax.synthesize.samples_page import samples_page
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stage_pool import StagePool
from k2jax.synthesize.stages import Record, SynthesisStage, content_key

CONFIG = "config.json"
OUT = "out.jsonl"
SAMPLES = "samples.html"
ROUNDS = 4
"""Times that records are given to workers, of which those are left that failed before."""


class Machines(NamedTuple):
    """Where stages run.

    Attributes:
        workers: processes.
        at_once: records of each at a time.
        ray: address of a Ray cluster; empty for processes of this machine.
    """

    workers: int = 2
    at_once: int = 32
    ray: str = ""

    def launcher(self) -> LocalLauncher | RayLauncher:
        """What starts the workers."""
        return RayLauncher(self.ray) if self.ray else LocalLauncher()


class Synthesis:
    """A pipeline in a folder.

    Args:
        workdir: of the run; one that was killed goes on.
        config: of the run.
        machines: where it runs.
        replay: workdir of a run whose answers are taken instead of asking models; empty asks them.
        say: receives lines about the progress.

    Raises:
        UserError: the folder holds a run of another config.
    """

    def __init__(
        self,
        workdir: Path | str,
        config: SynthesisConfig,
        machines: Machines = Machines(),  # noqa: B008
        replay: str = "",
        say: Callable[[str], None] = print,
    ):
        self._folder, self._config, self._machines = Path(workdir), config, machines
        self._replay, self._say = replay, say
        self._values = dataclasses.asdict(config)
        text, path = json.dumps(self._values, indent=2) + "\n", self._folder / CONFIG
        if path.exists() and path.read_text() != text:
            raise UserError(f"{self._folder} holds a run of another config; give another --workdir, or delete it")
        write_atomic(path, text)

    async def run(self) -> list[StageCounts]:
        """Runs all stages and writes what is shown of them.

        Raises:
            UserError: a stage cannot work, or records fail at every attempt; the same command goes on.
        """
        pipeline, counts, seconds = PIPELINES[self._config.pipeline], [], {}
        records = pipeline.first_records(self._config)
        shown: list[tuple[SynthesisStage, Sequence[StageResult]]] = []
        async with self._pool() as pool:
            for number, stage in enumerate(pipeline.stages(self._config), 1):
                began, folder = time.monotonic(), self._folder / STAGES / f"{number:02}_{stage.name}"
                results = await self._stage(stage, folder, records, pool)
                seconds[stage.name] = time.monotonic() - began
                counts.append(counts_of(stage.name, len(records), results))
                shown.append((stage, results))
                records = [record for result in results for record in result.made.kept]
                write_json_lines(folder / OUT, records)
                self._say(f"{counts[-1].line()} · {seconds[stage.name]:.1f} s")
                if not records:
                    self._show(counts, shown, seconds)
                    raise UserError(f"the stage {stage.name} kept nothing; {self._folder / SAMPLES} shows why")
        self._show(counts, shown, seconds)
        manifest = pipeline.export(self._folder, self._config, {stage.name: results for stage, results in shown})
        write_atomic(self._folder / "manifest.json", json.dumps(manifest, indent=2) + "\n")
        return counts

    def _pool(self) -> StagePool:
        machines = self._machines
        choices = {"workers": machines.workers, "capacity": machines.at_once, "launcher": machines.launcher()}
        return StagePool(self._folder, self._values, self._replay, **choices)

    async def _stage(
        self, stage: SynthesisStage, folder: Path, records: Sequence[Record], pool: StagePool
    ) -> list[StageResult]:
        """The results of a stage in the order of its records."""
        kept = KeptResults(folder, self._say)
        try:
            if stage.is_whole:
                return [self._whole(stage, records, kept)]
            identity = self._identity(stage)
            keyed = [(content_key(identity, place, record), record) for place, record in _placed(records)]
            for _ in range(ROUNDS):
                missing = [(key, record) for key, record in keyed if key not in kept.found]
                if not missing:
                    break
                reasons = await self._make(stage, missing, kept, pool)
            else:
                [(reason, count), *_] = reasons.most_common(1)
                raise UserError(
                    f"{reasons.total()} records of the stage {stage.name} failed at every attempt, {count} of them: "
                    f"{reason}; the same command tries them again"
                )
            return [kept.found[key] for key, _ in keyed]
        finally:
            kept.close()

    @staticmethod
    async def _make(
        stage: SynthesisStage, missing: Sequence[tuple[str, Record]], kept: KeptResults, pool: StagePool
    ) -> Counter[str]:
        """Gives records to workers and keeps what comes back; why others failed."""
        failed: Counter[str] = Counter()
        async for result in pool.results(stage.name, missing):
            if isinstance(result, str):
                failed[result] += 1
            else:
                kept.keep(result)
        return failed

    def _whole(self, stage: SynthesisStage, records: Sequence[Record], kept: KeptResults) -> StageResult:
        key = content_key(self._identity(stage), list(records))
        if key not in kept.found:
            kept.keep(StageResult(key, made_by(stage.maker, **stage.options)(records)))
        return kept.found[key]

    def _identity(self, stage: SynthesisStage) -> list[Any]:
        """All that a stage's results depend on beside their records."""
        models = [(role, self._values["models"].get(role)) for role in stage.roles]
        return [stage.name, stage.maker, dict(stage.options), stage.version, models, self._config.seed]

    def _show(self, counts: Sequence[StageCounts], shown: Any, seconds: Mapping[str, float]) -> None:
        write_atomic(self._folder / "funnel.json", json.dumps([count.to_json() for count in counts], indent=2) + "\n")
        costs = {count.stage: count.cost(self._config.models) for count in counts}
        write_atomic(
            self._folder / "times.json", json.dumps({"seconds": dict(seconds), "costs": costs}, indent=2) + "\n"
        )
        write_atomic(self._folder / "funnel.md", funnel_table(counts))
        funnel_picture(counts, self._folder / "funnel.png")
        write_atomic(self._folder / SAMPLES, samples_page(self._config.pipeline, counts, shown))


def _placed(records: Sequence[Record]) -> list[tuple[int, Record]]:
    """Records with how many equal ones stand before them, so that equal ones have results of their own."""
    seen: Counter[str] = Counter()
    placed = []
    for record in records:
        key = content_key(record)
        placed.append((seen[key], record))
        seen[key] += 1
    return placed
