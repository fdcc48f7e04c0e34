"""The splits of tasks that are read from files: disjoint, and all of a file for evaluation."""

import json

import pytest

from k2jax.agents.dataset import load_tasks
from tests.refusal import refused

COUNT = 60
RECORDS = {
    "math": lambda n: {"question": f"q{n}", "answer": str(n)},
    "code": lambda n: {"prompt": f"p{n}", "tests": ["assert True"]},
    "mbpp": lambda n: {"task_id": 480 + n, "text": f"t{n}", "code": "", "test_list": ["assert True"]},
    "terminal": lambda n: {"instruction": f"i{n}", "solution": "true", "test": "", "files": {}},
    "ifbench": lambda n: {"key": n, "prompt": f"p{n}", "instruction_id_list": ["a"], "kwargs": [{}]},
    "bfcl": lambda n: {
        "id": str(n),
        "question": [[{"role": "user", "content": f"q{n}"}]],
        "initial_config": {},
        "classes": [],
        "tools": [{"type": "function"}],
        "ground_truth": [],
    },
}


@pytest.mark.parametrize("dataset", sorted(RECORDS))
def test_training_and_held_out_tasks_of_a_file_are_disjoint_and_all_is_all_of_it(dataset, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(RECORDS[dataset](n)) + "\n" for n in range(COUNT)))
    ids = {split: [t.id for t in load_tasks(dataset, (f"path={path}",), split)] for split in ("train", "test", "all")}
    assert sorted(ids["train"] + ids["test"]) == sorted(ids["all"]) and len(ids["all"]) == COUNT
    assert ids["train"] and ids["test"]


@pytest.mark.parametrize(("dataset", "split"), [("math", "tests"), ("characters", "all"), ("terminal", "all")])
def test_a_split_that_a_dataset_does_not_have_is_refused_by_name(dataset, split):
    with refused(f"no split '{split}', only train, test|all is of a file"):
        load_tasks(dataset, ("path=x",) if dataset == "math" else (), split)
