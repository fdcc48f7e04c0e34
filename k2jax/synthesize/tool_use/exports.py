"""What a run of the pipeline is for: conversations to fine-tune on, tasks for reinforcement learning, a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k2jax.files.atomic import write_atomic, write_json_lines
from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import Record
from k2jax.synthesize.tool_use.tau2_export import export_tau2
from k2jax.synthesize.tool_use.trajectory_judge import BLAMED

_PLANTED = ("agent", "user", "tool")


def export_tool_use(
    folder: Path, config: SynthesisConfig, results: Mapping[str, Sequence[StageResult]]
) -> dict[str, Any]:
    """Writes ``sft.jsonl``, ``unfiltered.jsonl``, ``tasks.jsonl`` and domains of tau2 into a run's folder.

    The tasks are those of all dialogues: they can be solved, whatever the agent made of them.

    Args:
        folder: of the run.
        config: of the run.
        results: of all stages by name.

    Returns:
        Counts, and how the judge agrees with the worlds' states.
    """
    kept = [record for result in results["judged"] for record in result.made.kept]
    dropped = [record for result in results["judged"] for _, record in result.made.dropped if "verdict" in record]
    write_json_lines(folder / "sft.jsonl", [_conversation(record) for record in kept])
    write_json_lines(folder / "unfiltered.jsonl", [_conversation(record) for record in (*kept, *dropped)])
    tasks = [record["task_json"] for result in results["dialogues"] for record in result.made.kept]
    write_atomic(folder / "tasks.jsonl", "".join(f"{task}\n" for task in tasks))
    domains = export_tau2(folder / "tau2", [record for result in results["tasks"] for record in result.made.kept])
    return {
        "conversations": len(kept),
        "tasks": len(tasks),
        "tau2_domains": domains,
        "judge": judge_agreement(kept, dropped),
    }


def judge_agreement(judged: Sequence[Record], dropped: Sequence[Record]) -> dict[str, Any]:
    """Precision and recall of "good" by the judge against the worlds' states, and whom it blames.

    Returns:
        ``blame`` is the share of verdicts that blame whom the exact judge blames; ``planted`` the share of planted
        faults, of those that kept the goal from being reached, that are blamed on whom they were planted in; ``blamed``
        counts verdicts by what was planted: ``none`` where nothing was and the goal was not reached either;
        ``second_agrees`` is the share of second verdicts with the blame of the first.
    """
    everything = (*judged, *dropped)
    counts = {name: dict.fromkeys(BLAMED, 0) for name in ("agent", "user", "tool", "none", "solved")}
    for record in everything:
        planted = record["dialogue"]["planted"]
        name = "solved" if record["exact"]["solved"] else "none" if planted == "nobody" else planted
        counts[name][record["verdict"]["blame"]] += 1
    faults = sum(sum(counts[name].values()) for name in _PLANTED)
    right = sum(record["exact"]["solved"] for record in judged)
    missed = sum(record["exact"]["solved"] for record in dropped)
    blamed = [record["verdict"]["blame"] == record["exact"]["blame"] for record in everything]
    seconds = [record for record in everything if "second_verdict" in record]
    agreed = [record["verdict"]["blame"] == record["second_verdict"]["blame"] for record in seconds]
    second = {"second_agrees": sum(agreed) / len(agreed)} if agreed else {}
    return {
        "judged": len(blamed),
        **second,
        "precision": right / len(judged) if judged else None,
        "recall": right / (right + missed) if right + missed else None,
        "blame": sum(blamed) / len(blamed) if blamed else None,
        "planted": sum(counts[name][name] for name in _PLANTED) / faults if faults else None,
        "blamed": counts,
    }


def _conversation(record: Record) -> dict[str, Any]:
    of = {"messages": record["dialogue"]["messages"], "tools": record["tools_json"]}
    return {**of, "exact": {**record["exact"], "planted": record["dialogue"]["planted"]}}
