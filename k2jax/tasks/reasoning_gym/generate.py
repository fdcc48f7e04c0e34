"""The process that generates reasoning-gym tasks: a request as JSON on stdin, a task on every line of stdout."""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
import sys
from typing import Any

from k2jax.agents.split import split_of
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate, nearest
from k2jax.tasks.reasoning_gym.dataset import ANSWER_FORMAT, DEFAULT_LEVEL, PACKAGE
from k2jax.tasks.reasoning_gym.json_values import to_json_values

MIXTURE = "composite"
"""A generator that has no puzzles of its own."""
_SEEDS = 1_000_003  # between the seeds of blocks
_TRIES = 200  # for one more puzzle that is new and of the split


def main() -> int:
    """Writes the tasks; 2 means that the last line of stderr is the user's mistake."""
    request = json.loads(sys.stdin.read())
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # some generators print
    try:
        with output:
            output.writelines(f"{task.to_json()}\n" for task in generate(request))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def generate(request: dict[str, Any]) -> Iterator[Task]:
    """The tasks of a request: one of each generator in turn; a generator without a new puzzle drops out."""
    names, left = _names(request), request["count"]
    sources = {name: _puzzles(name, request) for name in names}
    while left and sources:
        for name, source in list(sources.items())[:left]:
            task = next(source, None)
            if task is None:
                del sources[name]
            else:
                left -= 1
                yield task
    if left:
        raise UserError(
            f"reasoning_gym: {request['count'] - left} distinct puzzles of these generators are in the split "
            f"{request['split']!r}; lower count, or name more generators"
        )


def _names(request: dict[str, Any]) -> list[str]:
    factory, levels = PACKAGE.load(), request["level"] != DEFAULT_LEVEL
    known = [name for name in factory.DATASETS if name != MIXTURE and (name in factory.CURRICULA or not levels)]
    if request["generators"] == ["all"]:
        return known
    for name in request["generators"]:
        if name not in known:
            kind = "no generator" if name not in factory.DATASETS or name == MIXTURE else "no generator with levels"
            raise UserError(f"reasoning_gym: there is {kind} {abbreviate(name)}{nearest(name, known)}")
    return list(dict.fromkeys(request["generators"]))


def _puzzles(name: str, request: dict[str, Any]) -> Iterator[Task]:
    """Distinct puzzles of one generator in the split."""
    dataset = _dataset(name, request["level"], request["seed"])
    seen: set[str] = set()
    index, found_at = 0, 0
    while index - found_at < _TRIES:
        block, place = divmod(index, len(dataset))
        if index and not place:  # some generators have no puzzle beyond their size: the next ones have another seed
            dataset = _dataset(name, request["level"], request["seed"] + _SEEDS * block)
        index += 1
        try:
            entry = dict(dataset[place])
        except ZeroDivisionError:  # basic_arithmetic divides by zero for some seeds: there is no such puzzle
            continue
        question = entry.pop("question")
        if question not in seen and split_of(question) == request["split"]:
            seen.add(question)
            found_at = index - 1
            yield Task(
                id=f"{name}/level{request['level']}/seed{request['seed']}/{index - 1}",
                domain=dataset.category,
                instruction=({"role": "user", "content": question + ANSWER_FORMAT},),
                verifier="reasoning_gym",
                metadata={"generator": name, "entry": to_json_values(entry), "level": request["level"]},
            )


def _dataset(name: str, level: int, seed: int) -> Any:
    factory = PACKAGE.load()
    if level == DEFAULT_LEVEL:
        return factory.create_dataset(name, seed=seed)
    curriculum = factory.create_curriculum(name)
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if level > highest:
        raise UserError(f"reasoning_gym: {name} has the levels 0 to {highest}, not {level}")
    curriculum.set_global_level(level)
    return factory.DATASETS[name][0](config=curriculum.generate_configuration({"seed": seed}))


if __name__ == "__main__":
    sys.exit(main())
