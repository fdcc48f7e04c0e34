"""The pipeline ``tools``: a repository of tools that are evolved, and of those that servers of MCP offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import math
from pathlib import Path
from typing import Any

from k2jax.files.atomic import write_atomic
from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.questions import AskedModel, ProgramModel
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import Record, SynthesisStage
from k2jax.synthesize.tools.domain_worlds import domain_questions
from k2jax.synthesize.tools.evolution_program import written_repository
from k2jax.synthesize.tools.mcp_servers import read_servers
from k2jax.synthesize.tools.tool_picture import draw_tools
from k2jax.synthesize.tools.tool_store import coverage_report, write_repository

_HERE = "k2jax.synthesize.tools"


def repository_records(config: SynthesisConfig) -> list[Record]:
    """The servers that are listed, and a question for some domains of every category.

    Raises:
        UserError: the file of the servers cannot be read.
    """
    servers = read_servers(Path(config.repository.mcp).expanduser()) if config.repository.mcp else []
    return [*servers, *domain_questions(math.ceil(_domains(config) / 2))]


def repository_stages(config: SynthesisConfig) -> list[SynthesisStage]:
    """The stages in order."""
    sizes = config.repository
    near = {"near": sizes.near, "encoder": sizes.encoder}
    rounds = [
        {"number": number, "rounds": sizes.rounds, "tools": sizes.domain_tools} for number in range(1, sizes.rounds + 1)
    ]
    writer = ("writer",)
    return [
        *([SynthesisStage(name="servers", maker=f"{_HERE}.mcp_servers:listed")] if sizes.mcp else []),
        SynthesisStage(name="domains", maker=f"{_HERE}.domain_worlds:domains", roles=writer),
        SynthesisStage(name="neighbours", maker=f"{_HERE}.evolution:neighbours", options={"count": 1}, roles=writer),
        SynthesisStage(name="worlds", maker=f"{_HERE}.domain_worlds:worlds", roles=writer),
        *(
            SynthesisStage(
                name=f"evolved_{one['number']}", maker=f"{_HERE}.evolution:evolved", options=one, roles=writer
            )
            for one in rounds
        ),
        SynthesisStage(
            name="distinct_domains", maker=f"{_HERE}.distinct_domains:distinct_domains", options=near, is_whole=True
        ),
    ]


def _domains(config: SynthesisConfig) -> int:
    return math.ceil(config.repository.tools / config.repository.domain_tools)


def repository_programs(config: SynthesisConfig) -> Mapping[str, AskedModel]:
    """The programs by role."""
    seed = config.seed

    def answer(question: Any, _: int) -> Mapping[str, Any]:
        return {"content": json.dumps(written_repository(question, seed), ensure_ascii=False)}

    return {"writer": ProgramModel(f"grammar {seed}", answer)}


def export_repository(
    folder: Path, config: SynthesisConfig, results: Mapping[str, Sequence[StageResult]]
) -> dict[str, Any]:
    """Writes the repository, ``coverage.json`` and with an encoder the picture of tools into a run's folder.

    Args:
        folder: of the run.
        config: of the run.
        results: of all stages by name.

    Returns:
        Counts.
    """
    records = [record for result in results["distinct_domains"] for record in result.made.kept]
    entries = write_repository(folder, records)
    report = coverage_report(entries)
    if config.repository.encoder:
        draw_tools(entries, folder / "tools.png", config.repository.encoder)
    write_atomic(folder / "coverage.json", json.dumps(report, indent=2) + "\n")
    counts = list(report["domain"].values())
    summary = {"domains": len(counts), "fewest_of_a_domain": counts[0], "most_of_a_domain": counts[-1]}
    return {**{key: report[key] for key in ("tools", "distinct", "source", "origin", "category")}, **summary}
