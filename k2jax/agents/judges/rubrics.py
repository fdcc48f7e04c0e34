"""Rubrics: what a judge compares answers by, as files.

A file is a YAML list of entries ``name``, ``kind`` and ``text``, and optionally ``mandatory``, ``domains`` and
``group``. Kimi K2 (section 3.2.2) has three kinds: core rubrics hold the values of the assistant, prescriptive ones
forbid what only pleases a judge, and human ones are written by annotators for certain tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate, nearest

RubricKind = Literal["core", "prescriptive", "human"]
PACKAGED = tuple(str(Path(__file__).with_name(f"{name}.yaml")) for name in ("core", "prescriptive"))
"""Files that are used where no other is named."""


@dataclasses.dataclass(frozen=True)
class Rubric:
    """One criterion.

    Attributes:
        name: unique among those of a run.
        kind: core, prescriptive or human.
        text: what a good answer does, for the judge.
        mandatory: whether the judge must not weigh it against others.
        domains: tags of tasks that it is for; empty for all.
        group: rubrics of one group are alternatives: a prompt is judged by one of them. Empty for none.
    """

    name: str
    kind: RubricKind
    text: str
    mandatory: bool = False
    domains: tuple[str, ...] = ()
    group: str = ""


def load_rubrics(paths: Sequence[str] = ()) -> tuple[Rubric, ...]:
    """The rubrics of files, in their order; without files the packaged ones.

    Raises:
        UserError: a file cannot be read or is no list of rubrics, or two of them have one name.
    """
    rubrics: dict[str, Rubric] = {}
    for path in paths or PACKAGED:
        for number, entry in enumerate(_entries(path), 1):
            rubric = _rubric(entry, f"rubric {number} of {path}")
            if rubric.name in rubrics:
                raise UserError(f"two rubrics have the name {rubric.name!r}, the second in {path}; rename one")
            rubrics[rubric.name] = rubric
    return tuple(rubrics.values())


def rubrics_for(task: Task, rubrics: Iterable[Rubric]) -> tuple[Rubric, ...]:
    """The rubrics that answers to a task are compared by.

    Those of other domains are left out. Of a group of alternatives one is taken, by a hash of the task: a policy that
    learns to please one wording does not please all of them (Kimi K2.5, section 4). Last comes what an annotator wrote
    for this task, its metadata's ``rubric``.

    Raises:
        UserError: the task's own rubric is no text.
    """
    suited = [rubric for rubric in rubrics if not rubric.domains or task.domain in rubric.domains]
    groups: dict[str, list[Rubric]] = {}
    for rubric in suited:
        groups.setdefault(rubric.group or f"\0{rubric.name}", []).append(rubric)
    chosen = [members[_hash(f"{task.id}/{group}") % len(members)] for group, members in groups.items()]
    if own := task.metadata.get("rubric"):
        if not isinstance(own, str):
            raise UserError(f"the rubric of the task {task.id!r} is {abbreviate(own)}; it must be text")
        chosen.append(Rubric("task", "human", own))
    return tuple(chosen)


def fingerprint(rubrics: Sequence[Rubric]) -> str:
    """Hash of rubrics and of their order."""
    return hashlib.sha256(repr([dataclasses.astuple(rubric) for rubric in rubrics]).encode()).hexdigest()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _entries(path: str) -> list[Any]:
    try:
        entries = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the rubrics {path}: {getattr(error, 'strerror', None) or 'no UTF-8'}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        raise UserError(f"the rubrics {path} are no YAML{f', see line {where.line + 1}' if where else ''}") from None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"the rubrics {path} must be a YAML list of entries with name, kind and text")
    return entries


def _rubric(entry: Any, name: str) -> Rubric:
    fields = {field.name: field for field in dataclasses.fields(Rubric)}
    if not isinstance(entry, dict):
        raise UserError(f"{name} is {abbreviate(entry)}; it needs name, kind and text")
    for key in entry:
        if key not in fields:
            raise UserError(f"{name} has the unknown key {abbreviate(key)}{nearest(str(key), list(fields))}")
    for key in ("name", "kind", "text"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise UserError(f"{name} needs {key!r}, a text that is not empty")
    if entry["kind"] not in get_args(RubricKind):
        raise UserError(f"{name} is of kind {abbreviate(entry['kind'])}; write {', '.join(get_args(RubricKind))}")
    if not isinstance(entry.get("mandatory", False), bool):
        raise UserError(f"{name}: mandatory is {abbreviate(entry['mandatory'])}; write true or false")
    domains = entry.get("domains", [])
    if not isinstance(domains, list) or not all(isinstance(domain, str) for domain in domains):
        raise UserError(f"{name}: domains are {abbreviate(domains)}; write a list of tags")
    if not isinstance(entry.get("group", ""), str):
        raise UserError(f"{name}: group is {abbreviate(entry['group'])}; write a name")
    return Rubric(**{**entry, "text": " ".join(entry["text"].split()), "domains": tuple(domains)})
