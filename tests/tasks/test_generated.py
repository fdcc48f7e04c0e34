"""What all generated datasets promise: options decide the tasks, splits share none, and mistakes are one line."""

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.split import split_of
from k2jax.errors import UserError
from k2jax.tasks.characters.teacher import demonstrations
from k2jax.tasks.commands.dataset import command_demonstrations
from k2jax.tasks.expressions.dataset import expression_demonstrations
from k2jax.tasks.file_answers.teacher import file_demonstrations
from k2jax.tasks.pictures.oracle import picture_demonstrations
from k2jax.tasks.running_totals.dataset import dialogue_demonstrations
from k2jax.tasks.tool_use.demonstrations import tool_demonstrations

NAMED_BY_ID = ("commands", "running_totals", "tool_use")
"""Datasets whose prompts do not say all that is drawn: the stores and files of two tasks may differ."""
DATASETS = {
    "characters": "kinds=add3+sort6",
    "commands": "kinds=sort+copy+count",
    "expressions": "kinds=half+sum",
    "file_answers": "kinds=write+copy+join+follow",
    "instructions": "constraints=3",
    "running_totals": "turns=3",
    "search_world": "documents=400",
    "tables": "rows=12",
    "terminal": "kinds=files+text",
    "tool_use": "kinds=calc2+kv2+hop2",
}


@pytest.mark.parametrize("dataset", DATASETS)
def test_options_decide_the_tasks_and_splits_of_all_seeds_share_none(dataset):
    def load(split="train", seed=0):
        return load_tasks(dataset, (DATASETS[dataset], "count=40", f"seed={seed}"), split)

    train, other, test = load(), load(seed=1), load("test", seed=2)
    assert len(train) == len(test) == 40 and train == load() and train != other
    if dataset == "terminal":  # few instructions, over files of many contents
        identity = lambda task: repr(task.metadata)  # noqa: E731
    else:
        identity = lambda task: task.id if dataset in NAMED_BY_ID else task.instruction[-1]["content"]  # noqa: E731
        assert len(set(map(identity, train))) == 40
        assert {split_of(identity(task)) for task in train + other} == {"train"}
        assert {split_of(identity(task)) for task in test} == {"test"}
    assert not {*map(identity, train), *map(identity, other)} & {*map(identity, test)}


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        *((dataset, "count=0", "count") for dataset in DATASETS),
        ("characters", "kinds=add1 count=79", r"hardly more than [0-9]+ distinct problems"),
        ("characters", "kinds=add", "no kind followed by a size"),
        ("characters", "kinds=add0", "must be 1 to 99"),
        ("characters", "kinds=add03", "no kind followed by a size"),
        ("characters", "kinds=add100", "must be 1 to 99"),
        ("characters", "kinds=mul3", "no kind followed by a size"),
        ("characters", "kinds=3", "no kind followed by a size"),
        ("characters", "kinds=", "kinds is empty"),
        ("commands", "kinds=sorted", "did you mean 'sort'"),
        ("expressions", "kinds=halve", "did you mean 'half'"),
        ("file_answers", "kinds=writ", "did you mean 'write'"),
        ("file_answers", "kinds=", "kinds is empty"),
        ("file_answers", "syllables=0", "must be positive"),
        ("instructions", "constraints=0", "must be from 1"),
        ("instructions", "constraints=99", "must be from 1"),
        ("pictures", "kinds=", "name a kind"),
        ("picture_tools", "kinds=read", "no kind 'read'"),
        ("picture_tools", "kinds=aria", "did you mean 'area'"),
        ("picture_tools", "count=0", "a count"),
        ("picture_tools", "side=40", "least"),
        ("running_totals", "turns=1 largest=0 count=500", "hardly more than"),
        ("running_totals", "turns=0", "must be positive"),
        ("running_totals", "largest=10", "largest is 10; it must be a digit"),
        ("search_world", "kinds=wild", "did you mean 'wide'"),
        ("search_world", "rows=99", "a tenth"),
        ("search_world", "hops=9", "hops must be"),
        ("search_world", "kinds=deep documents=20 rows=1 hops=1 count=999", "hardly more than"),
        ("tables", "kinds=hop4", "no kind 'hop4'; did you mean"),
        ("tables", "rows=5", "must be from 6 to 40"),
        ("terminal", "kinds=file", "did you mean 'files'"),
        ("tool_use", "kinds=calk2+hop1", "did you mean 'calc'"),
        ("tool_use", "kinds=kv1", "must be 2 to 9"),
        ("tool_use", "kinds=2", "no kind"),
    ],
)
def test_mistakes_are_one_line(dataset, options, words):
    with pytest.raises(UserError, match=words) as caught:
        load_tasks(dataset, options.split(" "))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "teacher",
    [demonstrations, command_demonstrations, dialogue_demonstrations, expression_demonstrations, file_demonstrations,
     picture_demonstrations, tool_demonstrations],
)  # fmt: skip
@pytest.mark.parametrize("share", [-1.0, 2.0])
def test_a_teachers_share_that_is_none_is_refused(teacher, share):
    with pytest.raises(UserError, match=r"the share of .* must be between 0 and 1"):
        list(teacher([], share))
