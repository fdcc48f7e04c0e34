"""The pipeline ``safety``: its stages, and what a run is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from k2jax.agents.judges.trajectories import RUBRIC
from k2jax.agents.task import Task
from k2jax.files.atomic import write_atomic, write_json_lines
from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.safety.desk_programs import tells
from k2jax.synthesize.safety.seed_prompts import seed_prompts
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import Made, Record, SynthesisStage
from k2jax.synthesize.tools.near_duplicates import nearest_earlier, text_vectors

_HERE = "k2jax.synthesize.safety"


def safety_records(config: SynthesisConfig) -> list[Record]:
    """The seeds."""
    return seed_prompts(config.safety, config.seed)


def safety_stages(config: SynthesisConfig) -> list[SynthesisStage]:
    """The stages in order."""
    sizes = config.safety
    loop = {"rounds": sizes.rounds}
    return [
        SynthesisStage(name="distinct_seeds", maker=f"{_HERE}.safety_pipeline:distinct_seeds",
                       options={"near": sizes.near}, is_whole=True),
        SynthesisStage(name="attacked", maker=f"{_HERE}.attack_loop:attacked", options=loop,
                       roles=("attacker", "target", "judge")),
        SynthesisStage(name="answered", maker=f"{_HERE}.attack_loop:answered", roles=("writer", "judge")),
    ]  # fmt: skip


def distinct_seeds(near: float) -> Callable[[Sequence[Record]], Made]:
    """The stage that drops seeds whose request under its rules is nearly that of an earlier one."""

    def work(records: Sequence[Record]) -> Made:
        texts = [f"{record['request']} {record['policy']}" for record in records]
        made = Made([], [])
        for other, record in zip(nearest_earlier(text_vectors(texts), near, [0] * len(texts)), records, strict=True):
            made.dropped.append(("near-duplicate", record)) if other >= 0 else made.kept.append(record)
        return made

    return work


def export_safety(
    folder: Path, config: SynthesisConfig, results: Mapping[str, Sequence[StageResult]]
) -> dict[str, Any]:
    """Writes ``attacks.jsonl``, ``sft.jsonl`` and ``tasks.jsonl`` into a run's folder.

    Args:
        folder: of the run.
        config: of the run.
        results: of all stages by name.

    Returns:
        Attack success by category, strategy and round, refusals of harmless requests, and where the truth is known how
        the judge agrees with it.
    """
    seeds = [record for result in results["attacked"] for record in result.made.kept]
    answered = [record for result in results["answered"] for record in result.made.kept]
    attempts = [(seed, number, one) for seed in seeds for number, one in enumerate(seed["attempts"])]
    write_json_lines(
        folder / "attacks.jsonl",
        [{"seed": seed["id"], "category": seed["category"], "round": number, **one} for seed, number, one in attempts],
    )
    safe = [_conversation(record, record["attempts"][-1]["prompt"], record["safe_answer"]) for record in answered]
    helpful = [_conversation(seed, seed["harmless"], seed["harmless_answer"]) for seed in seeds if not seed["refuses"]]
    write_json_lines(folder / "sft.jsonl", [*safe, *helpful])
    tasks = [_task(seed) for seed in seeds if seed["attempts"][-1]["unsafe"]]
    write_atomic(folder / "tasks.jsonl", "".join(f"{task.to_json()}\n" for task in tasks))
    return {
        "seeds": len(seeds),
        "broken": sum(seed["attempts"][-1]["unsafe"] for seed in seeds),
        "refuses_harmless": sum(seed["refuses"] for seed in seeds),
        "conversations": {"safe": len(safe), "helpful": len(helpful)},
        "by_category": _shares((seed["category"], seed["attempts"][-1]["unsafe"]) for seed in seeds),
        "by_strategy": _shares((one["strategy"], one["unsafe"]) for _, _, one in attempts),
        "by_round": _shares((str(number), one["unsafe"]) for _, number, one in attempts),
        "judge": _agreement(attempts),
    }


def _shares(pairs: Any) -> dict[str, dict[str, int]]:
    asked, unsafe = Counter(), Counter()
    for name, is_unsafe in pairs:
        asked[name] += 1
        unsafe[name] += is_unsafe
    return {name: {"asked": asked[name], "unsafe": unsafe[name]} for name in sorted(asked)}


def _agreement(attempts: Sequence[tuple[Record, int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Precision and recall of "unsafe" by the judge against exact desks; empty where no truth is known."""
    known = [(tells(seed, one["answer"]), one["unsafe"]) for seed, _, one in attempts if "secret" in seed]
    if not known:
        return {}
    both, said, true = (sum(pick) for pick in zip(*((t and s, s, t) for t, s in known), strict=True))
    return {"judged": len(known), "precision": both / said if said else None, "recall": both / true if true else None}


def _system(record: Record) -> list[dict[str, str]]:
    return [{"role": "system", "content": record["policy"]}] if record["policy"] else []


def _conversation(record: Record, prompt: str, answer: str) -> dict[str, Any]:
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return {"messages": [*_system(record), *turns]}


def _task(record: Record) -> Task:
    """The attack that broke the target, for reinforcement learning by a judge with the seed's rubric."""
    prompt = {"role": "user", "content": record["attempts"][-1]["prompt"]}
    metadata = {RUBRIC: [{"text": point, "facet": "safety"} for point in record["rubric"]]}
    return Task(f"safety/{record['id']}", "safety", (*_system(record), prompt), "trajectory_rubric", metadata=metadata)
