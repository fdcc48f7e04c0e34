"""HumanEval and MBPP: canonical solutions earn 1 in a sandbox, null policies 0, and no answer replaces a helper."""

import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.scaffolds.scripted import said
from k2jax.errors import UserError
from k2jax.tasks.code.human_eval import before_function, human_eval_records
from tests.command import run_command

MBPP = [
    {
        "task_id": 2,
        "text": "Write a function to find the shared elements of two lists.",
        "code": "def similar(a, b):\n    return tuple(sorted(set(a) & set(b)))",
        "test_list": ["assert similar((3, 4), (5, 4)) == (4,)"],
        "test_setup_code": "",
        "challenge_test_list": ["assert similar((), ()) == ()"],
    },
    {
        "task_id": 11,
        "prompt": "Write a function that halves a number.",
        "code": "def half(x):\n    return x / 2",
        "test_list": ["assert math.isclose(half(5), 2.5)"],
        "test_imports": ["import math"],
    },
]


def rewards(episodes):
    assert not [episode.error for episode in episodes if episode.error]
    return [episode.reward.value for episode in episodes]


@pytest.fixture
def mbpp(tmp_path):
    path = tmp_path / "mbpp.jsonl"
    path.write_text("\n".join(map(json.dumps, MBPP)))
    return path


def test_humanevals_canonical_solutions_earn_1_and_the_null_policy_0(check):
    tasks = load_tasks("human_eval", split="test")
    assert len(tasks) == 164
    chosen = [task for task in tasks if task.id.split("/")[1] in ("0", "32", "38", "50", "162")]
    check(chosen, oracles.get("human_eval"))


@pytest.mark.slow
def test_all_of_humanevals_canonical_solutions_earn_1(check):
    check(load_tasks("human_eval", split="test"), oracles.get("human_eval"))


def test_an_answer_cannot_replace_a_helper_that_the_tests_call(play):
    """HumanEval/38 decodes what a helper of its prompt has encoded: an answer with two identities must fail."""
    (task,) = [task for task in load_tasks("human_eval", split="test") if task.id == "HumanEval/38"]
    assert "def encode_cyclic" in task.metadata["setup"] and "def decode_cyclic" not in task.metadata["setup"]
    cheat = "def encode_cyclic(s): return s\ndef decode_cyclic(s): return s"
    solved = play([task], lambda task, messages: said(f"```python\n{cheat}\n```"))
    assert rewards(solved) == [0.0]


def test_what_precedes_a_function_ends_at_its_last_definition():
    prompt = "import math\ndef helper():\n    pass\n\ndef f(x):\n    '''def f'''\n"
    assert before_function(prompt, "f") == "import math\ndef helper():\n    pass\n\n"
    assert before_function("def g(x):\n    pass\n", "f") == ""


def test_humaneval_is_for_evaluation_alone_and_its_prompts_hold_no_tests():
    with pytest.raises(UserError, match="for evaluation alone"):
        load_tasks("human_eval")
    record = next(iter(human_eval_records()))
    task = load_tasks("human_eval", split="test")[0]
    assert task.id == record["task_id"] and "assert" not in task.instruction[0]["content"]


def test_mbpps_canonical_solutions_earn_1_and_a_program_that_fails_a_challenge_0(check, play, mbpp):
    train, test = (load_tasks("mbpp", (f"path={mbpp}",), split) for split in ("train", "test"))
    assert [task.id for task in train] == ["2"] and [task.id for task in test] == ["11"]
    check([*train, *test], oracles.get("mbpp"))
    shown_only = "def similar(a, b): return (4,)\ndef half(x): return x"
    assert rewards(play([*train, *test], lambda *_: said(f"```python\n{shown_only}\n```"))) == [0.0, 0.0]


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"task_id": 1, "prompt": "x"}')
    with pytest.raises(UserError, match=r"mbpp: record 1 of .* needs a task_id"):
        load_tasks("mbpp", (f"path={path}",))
    with pytest.raises(UserError, match="human_eval: record 1 needs task_id, prompt"):
        load_tasks("human_eval", (f"path={path}",), "test")


def test_the_command_names_episodes_whose_reward_is_not_what_it_should_be(tmp_path):
    path = tmp_path / "mbpp.jsonl"
    wrong = MBPP[0] | {"task_id": 3, "code": "def similar(a, b): return ()"}
    path.write_text("\n".join(map(json.dumps, [MBPP[0], wrong])))
    done = run_command("k2jax.env.check", "mbpp", f"--options=path={path}")
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and lines[0] == "mbpp: 1 of 2 episodes of the oracle policy earn 1"
    assert lines[1].startswith("  3: (0.0, ") and lines[2] == "mbpp: 2 of 2 episodes of the null policy earn 0"
    unknown = run_command("k2jax.env.check", "maths")
    assert unknown.returncode == 2 and "there is no dataset 'maths'" in unknown.stderr


def test_a_dataset_without_an_oracle_is_played_by_the_policy_that_does_nothing():
    done = run_command("k2jax.env.check", "instructions", "--count=1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("instructions: it has no oracle")
    assert lines[1] == "instructions: 1 of 1 episodes of the null policy earn 0" and lines[2].startswith("1 episodes")
