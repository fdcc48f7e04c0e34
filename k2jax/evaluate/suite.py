"""What is evaluated, as data: the tasks of a data set, how answers are sampled and by what, and what is measured.

A suite is a file ``experiments/evaluate/NAME.py`` with ``get_config()``, which starts from ``suite(...)``. Presets are
the settings of reports that a suite can express; docs/evaluate.md says which those are.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from ml_collections import ConfigDict

from k2jax.agents.dataset import load_tasks
from k2jax.agents.options import parameters_of
from k2jax.agents.registry import datasets
from k2jax.agents.task import Task
from k2jax.config import TaskConfig, load_experiment
from k2jax.config.build import read_group, to_config_dict
from k2jax.config.fields import check_fields
from k2jax.config.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, PositiveShare
from k2jax.errors import UserError, nearest
from k2jax.evaluate.votes import VOTES
from k2jax.tasks.generated import user

FOLDER = Path("experiments/evaluate")
DATE = "DATE"
"""Stands in a system prompt for the day on which the evaluation began."""
Metric = Literal["pass", "pass_hat", "majority", "best", "judged_best"]
_K25_SYSTEM = (
    "You are Kimi, today's date: DATE. Your task is to help the user with their questions by using various tools, "
    "thinking deeply, and ultimately answering the user's questions. Please follow the following principles strictly "
    "during the deep research: 1. Always focus on the user's original question during the research process, avoiding "
    "deviating from the topic. 2. When facing uncertain information, use search tools to confirm. 3. When searching, "
    "filter high-trust sources (such as authoritative websites, academic databases, and professional media) and "
    "maintain a critical mindset towards low-trust sources. 4. When performing numerical calculations, prioritize "
    "using programming tools to ensure accuracy. 5. Please use the format [^index^] to cite any information you use. "
    "6. This is a **Very Difficult** problem, do not underestimate it. You must use tools to help your reasoning and "
    "then solve the problem. 7. Before you finally give your answer, please recall what the question is asking for."
)
PRESETS = MappingProxyType(
    {
        "k2": {"thinking": False, "max_tokens": 8192, "context": 131_072, "overflow": "truncate"},
        "k2-agentless": {"thinking": False, "max_tokens": 16_384, "context": 131_072, "overflow": "truncate"},
        "k2.5": {"temperature": 1.0, "top_p": 0.95, "context": 262_144, "overflow": "fail"},
        "k2.5-reasoning": {"temperature": 1.0, "top_p": 0.95, "context": 262_144, "max_tokens": 98_304},
        "k2.5-coding": {"temperature": 1.0, "top_p": 0.95, "context": 262_144, "thinking": False, "samples": 5},
        "k2.5-search": {
            "temperature": 1.0, "top_p": 0.95, "context": 262_144, "samples": 4, "steps": 100, "system": _K25_SYSTEM,
        },
        "k2.5-vision": {"temperature": 1.0, "top_p": 0.95, "context": 262_144, "max_tokens": 65_536, "samples": 3},
        "kat": {"samples": 3, "metrics": ("pass_hat",)},
    }
)  # fmt: skip
"""Settings of Kimi K2 section 4.1.1, Kimi K2.5 appendix E and KAT-Coder-V2 section 4."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """A data set and how a model is asked about it."""

    dataset: str = "characters"  #: name of a registered dataset
    options: tuple[str, ...] = ()  #: options of the dataset, each "name=value"; {data} in a value is --data
    split: Literal["", "train", "test", "all"] = ""  #: empty is all of what is read, and "test" of what is drawn
    count: NonNegativeInt = 0  #: the first so many tasks; 0 is all
    method: Literal["generate", "choices"] = "generate"  #: answers, or the likelihoods of a task's continuations
    template: Literal["chat", "text"] = "chat"  #: of method choices: a conversation, or the instruction's text alone
    samples: PositiveInt = 1  #: answers to each task (k)
    seed: NonNegativeInt = 0  #: of the answers
    max_tokens: PositiveInt = 1024  #: most tokens of an answer, or of each message of an episode [tokens]
    episode_tokens: NonNegativeInt = 0  #: most sampled tokens of an episode; 0 is the dataset's choice [tokens]
    steps: NonNegativeInt = 0  #: most calls of tools, and answers without one, of an episode; 0 is the dataset's choice
    temperature: NonNegativeFloat = 0.0  #: 0 takes the most likely tokens
    top_p: PositiveShare = 1.0  #: keeps the most likely tokens whose probabilities reach this sum; 1 keeps all
    top_k: NonNegativeInt = 0  #: keeps this many of the most likely tokens; 0 keeps all
    thinking: bool = True  #: whether answers begin with reasoning, of models that reason; false is instant mode
    context: NonNegativeInt = 0  #: most tokens of prompt and answer together; 0 is what the model holds [tokens]
    overflow: Literal["fail", "truncate"] = "fail"  #: a longer prompt is wrong unasked, or is cut in its middle
    system: str = ""  #: system prompt, in which DATE is the day; empty is none
    scaffold: str = ""  #: "NAME option=value ..."; empty is the dataset's choice
    tools: tuple[str, ...] = ()  #: toolsets, each "NAME option=value ..."; empty is the dataset's choice
    correct: PositiveShare = 1.0  #: least reward of an answer that is right
    judge: bool = False  #: a judge grades the answers too (--judge_url): how far it agrees with the verifier
    token_budget: NonNegativeInt = 0  #: tokens of all answers, read and written, that end the suite; 0 is none [tokens]
    metrics: tuple[Metric, ...] = ()  #: beside accuracy and mean reward: pass@k, pass^k, majority vote, best of k


def suite(preset: str = "", **fields: Any) -> ConfigDict:
    """A suite as an editable ConfigDict: the defaults, then a preset's settings, then ``fields``.

    Example:
        >>> config = suite("k2.5", dataset="reasoning_gym", samples=4)

    Raises:
        UserError: a preset or key is unknown.
    """
    known = [field.name for field in dataclasses.fields(Suite)]
    for key in fields:
        if key not in known:
            raise UserError(f"unknown key {key!r} of a suite{nearest(key, known)}")
    config = to_config_dict(Suite(**preset_fields(preset) | fields))
    config.lock()
    return config


def preset_fields(preset: str) -> dict[str, Any]:
    """The settings of a preset by name; those of the empty one are none.

    Raises:
        UserError: there is no such preset.
    """
    if preset and preset not in PRESETS:
        raise UserError(f"there is no preset {preset!r}{nearest(preset, PRESETS)}")
    return dict(PRESETS.get(preset, {}))


def load_suite(name: str, **changes: Any) -> Suite:
    """The suite of a name in ``experiments/evaluate``, or of a file, with changes.

    Raises:
        UserError: there is none, or a value is wrong.
    """
    path = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    if not path.is_file():
        names = sorted(file.stem for file in FOLDER.glob("*.py"))
        hint = nearest(name, names) if names else f"; run from the repository's root, where {FOLDER}/ is"
        raise UserError(f"there is no suite {name!r}{hint}")
    make = getattr(load_experiment(path), "get_config", None)
    if make is None:
        raise UserError(f"{path} has no get_config(), which returns k2jax.evaluate.suite.suite(...)")
    fields = make().to_dict()
    if fields["method"] == "choices":
        for of_answers in ("samples", "max_tokens"):  # of the suites of a command they are for those that sample
            changes.pop(of_answers, None)
    fields |= changes
    if changes.get("samples") == 1 and "metrics" not in changes:
        fields["metrics"] = ()  # each of them measures several samples
    return checked_suite(fields)


def checked_suite(fields: dict[str, Any]) -> Suite:
    """A suite of its fields.

    Raises:
        UserError: a key is unknown, or a value or a combination of values has no meaning.
    """
    suite = read_group(Suite, fields, "")
    check_fields(suite)
    if suite.method == "choices":
        defaults = Suite()
        unread = (
            "judge",
            "samples",
            "temperature",
            "top_p",
            "top_k",
            "tools",
            "scaffold",
            "steps",
            "episode_tokens",
            "metrics",
        )
        for name in unread:
            if getattr(suite, name) != getattr(defaults, name):
                raise UserError(f"config.{name} is set, and method choices samples nothing; leave it out")
    elif suite.template != "chat":
        raise UserError("config.template is text, which is of method choices alone; leave it out")
    if set(suite.metrics) and suite.samples < 2:
        raise UserError(f"config.metrics has {suite.metrics[0]}, which needs several samples; raise config.samples")
    if "judged_best" in suite.metrics and not suite.judge:
        raise UserError("config.metrics has judged_best, the best of k by a judge, and config.judge is false; set it")
    if suite.context and suite.context <= suite.max_tokens:
        raise UserError(f"config.context {suite.context} leaves no room for a prompt beside max_tokens")
    if suite.overflow == "truncate" and not suite.context:
        raise UserError("config.overflow is truncate, and config.context says at no length; set it")
    return suite


def suite_tasks(suite: Suite, data: str, day: str) -> list[Task]:
    """The tasks of a suite in order, with its choices.

    Args:
        suite: of which to load them.
        data: folder that stands for ``{data}`` in the options.
        day: that stands for ``DATE`` in the system prompt.

    Raises:
        UserError: the data set cannot be loaded, or a metric cannot be had of its verifier.
    """
    splits = get_args(parameters_of(datasets.get(suite.dataset))["split"].annotation)
    split = suite.split or ("all" if "all" in splits else "test")
    options = [option.replace("{data}", data) for option in suite.options]
    tasks = load_tasks(suite.dataset, options, split)
    tasks = tasks[: suite.count or None]
    named = ("tools", "scaffold", "steps", "episode_tokens", "thinking")
    choices = TaskConfig(**{name: getattr(suite, name) for name in named})
    tasks = [_with_system(task.with_choices(choices), suite.system.replace(DATE, day)) for task in tasks]
    for task in tasks:
        if suite.judge and "answer" not in task.metadata:
            raise UserError(f"the task {task.id!r} has no right answer that config.judge could be shown; leave it out")
        if "majority" in suite.metrics and task.verifier not in VOTES:
            raise UserError(
                f"the metric majority knows no votes of the verifier {task.verifier!r}, only of {', '.join(VOTES)}"
            )
    return tasks


def _with_system(task: Task, system: str) -> Task:
    """The task with a system prompt, before its own where it has one."""
    if not system:
        return task
    own = [message for message in task.instruction if message["role"] == "system"]
    rest = tuple(message for message in task.instruction if message["role"] != "system")
    text = "\n\n".join([system, *(str(message["content"]) for message in own)])
    return dataclasses.replace(task, instruction=(user(text) | {"role": "system"}, *rest))
