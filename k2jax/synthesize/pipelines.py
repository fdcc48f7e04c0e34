"""The pipelines by name: their stages, the programs that play models where no server is named, and what they export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.questions import AskedModel
from k2jax.synthesize.rephrase.rephrase_stages import rephrase_records, rephrase_stages
from k2jax.synthesize.rephrase.rephrased_files import export_rephrasings
from k2jax.synthesize.rephrase.wording_programs import rephrase_programs
from k2jax.synthesize.safety.desk_programs import safety_programs
from k2jax.synthesize.safety.safety_pipeline import export_safety, safety_records, safety_stages
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import Record, SynthesisStage
from k2jax.synthesize.tool_use.exports import export_tool_use
from k2jax.synthesize.tool_use.pipeline import tool_use_records, tool_use_stages
from k2jax.synthesize.tool_use.programs import tool_use_programs
from k2jax.synthesize.tools.repository_pipeline import (
    export_repository,
    repository_programs,
    repository_records,
    repository_stages,
)


class PipelineParts(NamedTuple):
    """What a pipeline is made of.

    Attributes:
        stages: of a config, in order.
        first_records: what the first stage works on.
        programs: that play models, by role.
        export: writes what the pipeline is for into the run's folder, of the results of all stages by name; what it
            returns is the manifest.
    """

    stages: Callable[[SynthesisConfig], list[SynthesisStage]]
    first_records: Callable[[SynthesisConfig], list[Record]]
    programs: Callable[[SynthesisConfig], Mapping[str, AskedModel]]
    export: Callable[[Path, SynthesisConfig, Mapping[str, Sequence[StageResult]]], Mapping[str, Any]]


PIPELINES = {
    "tool_use": PipelineParts(tool_use_stages, tool_use_records, tool_use_programs, export_tool_use),
    "rephrase": PipelineParts(rephrase_stages, rephrase_records, rephrase_programs, export_rephrasings),
    "safety": PipelineParts(safety_stages, safety_records, safety_programs, export_safety),
    "tools": PipelineParts(repository_stages, repository_records, repository_programs, export_repository),
}
"""By the names that a config has."""
