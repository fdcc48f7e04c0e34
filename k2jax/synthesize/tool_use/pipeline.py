"""The stages of the synthesis of tool use."""

from __future__ import annotations

import math

import numpy as np

from k2jax.synthesize.settings import SynthesisConfig, ToolUseConfig
from k2jax.synthesize.stages import Record, SynthesisStage
from k2jax.synthesize.tool_use.tool_repository import CATEGORIES, MOST_DOMAINS, TOOLS_OF_A_WORLD
from k2jax.tasks.worlds.grammar import SMALL_TOOLS

_HERE = "k2jax.synthesize.tool_use"


def tool_use_records(config: SynthesisConfig) -> list[Record]:
    """A question for some domains of every category."""
    worlds = _worlds(config.tool_use)
    rounds = math.ceil(worlds / (MOST_DOMAINS * len(CATEGORIES)))
    questions = [(category, number) for number in range(rounds) for category in CATEGORIES]
    counts = [len(part) for part in np.array_split(np.arange(worlds), len(questions))]
    return [
        {"category": category, "round": number, "count": count}
        for (category, number), count in zip(questions, counts, strict=True)
        if count
    ]


def _worlds(sizes: ToolUseConfig) -> int:
    return math.ceil(sizes.tools / (SMALL_TOOLS if sizes.size == "small" else TOOLS_OF_A_WORLD))


def tool_use_stages(config: SynthesisConfig) -> list[SynthesisStage]:
    """The stages in order."""
    sizes = config.tool_use
    worlds = _worlds(sizes)
    near = {"near": sizes.near, "encoder": sizes.encoder}
    agents = {"agents": math.ceil(sizes.agents / worlds), "seed": config.seed}
    tasks = {"tasks": math.ceil(sizes.tasks / sizes.agents), "wishes": sizes.wishes}
    faults = {"agent": sizes.mistakes, "user": sizes.user_faults, "tool": sizes.tool_faults}
    episodes = {"failures": sizes.failures, "steps": sizes.steps, "faults": faults}
    episodes["is_user_asked"] = "user" in config.models
    asked = ("agent", "user") if "user" in config.models else ("agent",)
    return [
        SynthesisStage(name="domains", maker=f"{_HERE}.tool_repository:domains", roles=("writer",)),
        SynthesisStage(name="worlds", maker=f"{_HERE}.tool_repository:worlds", roles=("writer",)),
        SynthesisStage(
            name="distinct_worlds", maker=f"{_HERE}.near_duplicates:distinct_worlds", options=near, is_whole=True
        ),
        SynthesisStage(name="agents", maker=f"{_HERE}.agent_prompts:agents", options=agents, roles=("writer",)),
        SynthesisStage(
            name="distinct_agents", maker=f"{_HERE}.near_duplicates:distinct_agents", options=near, is_whole=True
        ),
        SynthesisStage(name="tasks", maker=f"{_HERE}.world_tasks:tasks", options=tasks, roles=("writer",)),
        SynthesisStage(name="dialogues", maker=f"{_HERE}.dialogues:dialogues", options=episodes, roles=asked),
        SynthesisStage(name="judged", maker=f"{_HERE}.trajectory_judge:judged", roles=("judge",)),
    ]
