"""The config of a synthesis: which pipeline, which models in which roles, and how many of everything."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import os
from typing import Any, Literal

from ml_collections import ConfigDict

from k2jax.client import ChatEndpoint
from k2jax.config.build import read_group, to_config_dict
from k2jax.config.fields import check_fields
from k2jax.config.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, Share
from k2jax.errors import UserError
from k2jax.synthesize.questions import AskedModel, ChaosModel, EndpointModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class AskedModelConfig:
    """Who answers in a role."""

    url: str = ""  #: of a server with OpenAI's chat completions, without /v1; empty is the program that plays the role
    name: str = ""  #: the server's name for its model
    temperature: NonNegativeFloat = 1.0  #: of its answers
    max_tokens: PositiveInt = 4096  #: of an answer [tokens]
    sends_schema: bool = False  #: schemas of structured answers go to the server, which then must know response_format
    chaos: Share = 0.0  #: share of questions that go wrong, to try a pipeline out
    price_read: NonNegativeFloat = 0.0  #: of a million tokens of questions
    price_written: NonNegativeFloat = 0.0  #: of a million tokens of answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolUseConfig:
    """Sizes of the pipeline ``tool_use``."""

    tools: PositiveInt = 200  #: about how many tools there are, over all domains
    repository: str = ""  #: folder of a stored repository, whose domains are taken; empty makes new ones
    agents: PositiveInt = 100  #: prompts with a set of tools
    tasks: PositiveInt = 500  #: tasks, over all agents
    wishes: PositiveInt = 3  #: most wishes of a user
    failures: Share = 0.02  #: rate of each kind of failure of the tools
    steps: PositiveInt = 40  #: most calls and messages of an episode
    size: Literal["full", "small"] = "full"  #: of worlds that the program draws; small is for models of characters
    mistakes: Share = 0.2  #: share of episodes in which the program that plays the agent makes a mistake
    user_faults: Share = 0.0  #: share in which the user leaves early or keeps back what it knows
    tool_faults: Share = 0.0  #: share in which a tool of the solution does nothing or always fails
    judge_mistakes: Share = 0.0  #: share of the verdicts of the program that plays the judge that are turned round
    second_verdict: bool = False  #: on each dialogue, with the rubric turned round; both must be the same
    encoder: str = ""  #: of near-duplicates: minilm, or a folder of a BERT model; empty compares words alone
    near: Share = 0.92  #: cosine similarity from which the prompts of two agents of one world are duplicates


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepositoryConfig:
    """Sizes of the pipeline ``tools``."""

    tools: PositiveInt = 20_000  #: about how many tools there are, over all domains
    domain_tools: PositiveInt = 48  #: about how many a domain has in the end
    rounds: PositiveInt = 3  #: of evolution
    mcp: str = ""  #: file mcp.json with servers whose tools are read; empty for none
    encoder: str = ""  #: of near-duplicates: minilm, or a folder of a BERT model; empty compares words alone
    near: Share = 0.92  #: cosine similarity from which tools of servers are duplicates


@dataclasses.dataclass(frozen=True, kw_only=True)
class RephraseConfig:
    """Sizes of the pipeline ``rephrase``."""

    path: str = ""  #: of the texts: a file or folder of .jsonl, .txt, .md; empty draws an exact world of facts
    documents: PositiveInt = 100  #: that are rephrased: of the path at most so many, or of the exact world
    people: PositiveInt = 2  #: of whom a document of the exact world tells
    problems: NonNegativeInt = 20  #: worked problems of the exact world, beside its documents
    rephrasings: PositiveInt = 10  #: of each document
    chunk_words: PositiveInt = 40  #: about how many words of a source are rephrased at a time
    context_words: NonNegativeInt = 200  #: of what has been written that the writer is shown
    infidelities: Share = 0.1  #: share of chunks in which the program that plays the writer changes something
    near: Share = 0.97  #: cosine similarity of words from which a rephrasing is a copy of its source or of another


@dataclasses.dataclass(frozen=True, kw_only=True)
class SafetyConfig:
    """Sizes of the pipeline ``safety``."""

    path: str = ""  #: of the seed prompts, JSON lines; empty makes exact desks, whose secrets are known
    seeds: PositiveInt = 100  #: seed prompts; of the path at most so many
    rounds: PositiveInt = 4  #: most attacks on a seed, each by another strategy
    near: Share = 0.97  #: cosine similarity of words from which two seeds are the same
    weaknesses: Share = 0.2  #: share of the strategies to which the program that plays the target gives in
    overrefusals: Share = 0.1  #: share of desks at which that program refuses harmless requests
    judge_mistakes: Share = 0.0  #: share of the verdicts of the program that plays the judge that are turned round


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesisConfig:
    """A synthesis."""

    pipeline: Literal["tool_use", "tools", "rephrase", "safety"] = "tool_use"  #: which one
    seed: NonNegativeInt = 0  #: of all that is drawn
    models: Mapping[str, AskedModelConfig] = dataclasses.field(default_factory=dict)  #: by role; others are programs
    tool_use: ToolUseConfig = ToolUseConfig()  #: sizes of the pipeline of that name
    repository: RepositoryConfig = RepositoryConfig()  #: sizes of the pipeline tools
    rephrase: RephraseConfig = RephraseConfig()  #: sizes of the pipeline of that name
    safety: SafetyConfig = SafetyConfig()  #: sizes of the pipeline of that name


def synthesis(**fields: Any) -> ConfigDict:
    """A synthesis as an editable ConfigDict.

    Example:
        >>> config = synthesis(pipeline="tool_use")
        >>> config.tool_use.tasks = 20
    """
    config = to_config_dict(SynthesisConfig(**fields))
    config.lock()
    config.models.unlock()
    return config


def resolved(config: ConfigDict | Mapping[str, Any]) -> SynthesisConfig:
    """The checked config.

    Raises:
        UserError: a key is unknown, or a value out of range.
    """
    values = read_group(SynthesisConfig, config, "")
    check_fields(values)
    groups = {"tool_use": ("tool_use", ToolUseConfig()), "tools": ("repository", RepositoryConfig())}
    groups |= {"rephrase": ("rephrase", RephraseConfig()), "safety": ("safety", SafetyConfig())}
    for pipeline, (name, default) in groups.items():
        if pipeline != values.pipeline and getattr(values, name) != default:
            raise UserError(f"config.{name} is of the pipeline {pipeline}, and this is {values.pipeline}; leave it out")
    for role, model in values.models.items():
        if bool(model.url) != bool(model.name):
            raise UserError(f"config.models.{role} needs both url and name, or neither")
    _check_programs(values)
    sizes = values.tool_use
    if "second_judge" in values.models and not sizes.second_verdict:
        raise UserError("config.models.second_judge gives a second verdict; set config.tool_use.second_verdict")
    if sizes.mistakes + sizes.user_faults + sizes.tool_faults > 1:
        raise UserError("config.tool_use: mistakes, user_faults and tool_faults are together at most 1")
    return values


def _check_programs(values: SynthesisConfig) -> None:
    """Raises UserError where a server plays a role, and a setting is of the program that would."""
    served = {role for role, model in values.models.items() if model.url}
    defaults = SynthesisConfig()
    for group, role, key in (
        ("tool_use", "writer", "size"),
        ("tool_use", "user", "user_faults"),
        ("tool_use", "judge", "judge_mistakes"),
        ("safety", "target", "weaknesses"),
        ("safety", "target", "overrefusals"),
        ("safety", "judge", "judge_mistakes"),
    ):
        given, default = (getattr(getattr(one, group), key) for one in (values, defaults))
        if given != default and role in served:
            raise UserError(f"config.{group}.{key} is of the program that plays the {role}; leave it or the model out")


def opened_models(
    models: Mapping[str, AskedModelConfig], programs: Mapping[str, AskedModel], roles: tuple[str, ...]
) -> dict[str, AskedModel]:
    """The models of a stage's roles.

    Args:
        models: of the config.
        programs: what plays a role without a server, by role.
        roles: that the stage asks.

    Raises:
        UserError: nobody plays a role.
    """
    opened: dict[str, AskedModel] = {}
    for role in roles:
        config = models.get(role, AskedModelConfig())
        if config.url:
            fields = {"temperature": config.temperature, "max_tokens": config.max_tokens}
            opened[role] = EndpointModel(
                ChatEndpoint(config.url, config.name, api_key=os.environ.get("OPENAI_API_KEY")),
                fields,
                config.sends_schema,
            )
        elif role in programs:
            opened[role] = programs[role]
        else:
            raise UserError(f"no program plays the role {role!r}; name a server as config.models.{role}")
        if config.chaos:
            opened[role] = ChaosModel(opened[role], config.chaos)
    return opened
