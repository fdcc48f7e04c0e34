"""The stages of the synthesis of tool use."""

from __future__ import annotations

import math
import random

from k2jax.synthesize.settings import SynthesisConfig, ToolUseConfig
from k2jax.synthesize.stages import Record, SynthesisStage
from k2jax.synthesize.tools.domain_worlds import TOOLS_OF_A_WORLD, domain_questions
from k2jax.synthesize.tools.tool_store import ToolRepository
from k2jax.tasks.worlds.grammar import SMALL_TOOLS

_HERE = "k2jax.synthesize.tool_use"
_TOOLS = "k2jax.synthesize.tools"


def tool_use_records(config: SynthesisConfig) -> list[Record]:
    """A question for some domains of every category, or the domains of a stored repository.

    Raises:
        UserError: there is no such repository.
    """
    if config.tool_use.repository:
        return _stored_domains(config)
    return domain_questions(_worlds(config.tool_use))


def _stored_domains(config: SynthesisConfig) -> list[Record]:
    """Domains in a drawn order, until they have as many tools as are asked for."""
    chosen, tools = [], 0
    for record in ToolRepository(config.tool_use.repository).worlds(random.Random(config.seed)):
        if tools >= config.tool_use.tools:
            break
        chosen.append(record)
        tools += len(record["world"]["tools"])
    return chosen


def _worlds(sizes: ToolUseConfig) -> int:
    return math.ceil(sizes.tools / (SMALL_TOOLS if sizes.size == "small" else TOOLS_OF_A_WORLD))


def tool_use_stages(config: SynthesisConfig) -> list[SynthesisStage]:
    """The stages in order."""
    sizes = config.tool_use
    worlds = len(_stored_domains(config)) if sizes.repository else _worlds(sizes)
    near = {"near": sizes.near, "encoder": sizes.encoder}
    agents = {"agents": math.ceil(sizes.agents / worlds), "seed": config.seed}
    tasks = {"tasks": math.ceil(sizes.tasks / sizes.agents), "wishes": sizes.wishes}
    faults = {"agent": sizes.mistakes, "user": sizes.user_faults, "tool": sizes.tool_faults}
    episodes = {"failures": sizes.failures, "steps": sizes.steps, "faults": faults}
    episodes["is_user_asked"] = "user" in config.models
    asked = ("agent", "user") if "user" in config.models else ("agent",)
    judges = ("judge", "second_judge") if "second_judge" in config.models else ("judge",)
    second = {"second": judges[-1]} if sizes.second_verdict else {}
    made = [
        SynthesisStage(name="domains", maker=f"{_TOOLS}.domain_worlds:domains", roles=("writer",)),
        SynthesisStage(name="worlds", maker=f"{_TOOLS}.domain_worlds:worlds", roles=("writer",)),
    ]
    return [
        *([] if sizes.repository else made),
        SynthesisStage(
            name="distinct_worlds", maker=f"{_TOOLS}.near_duplicates:distinct_worlds", options=near, is_whole=True
        ),
        SynthesisStage(name="agents", maker=f"{_HERE}.agent_prompts:agents", options=agents, roles=("writer",)),
        SynthesisStage(
            name="distinct_agents", maker=f"{_TOOLS}.near_duplicates:distinct_agents", options=near, is_whole=True
        ),
        SynthesisStage(name="tasks", maker=f"{_HERE}.world_tasks:tasks", options=tasks, roles=("writer",)),
        SynthesisStage(name="dialogues", maker=f"{_HERE}.dialogues:dialogues", options=episodes, roles=asked),
        SynthesisStage(name="judged", maker=f"{_HERE}.trajectory_judge:judged", options=second, roles=judges),
    ]
