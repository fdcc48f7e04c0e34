"""Unit tests in a sandbox: right programs pass, and no program passes by attacking its judge."""

import asyncio
import json

import numpy as np
import pytest

from k2jax.agents import Task
from k2jax.agents.dataset import load_tasks
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.verdicts import VerdictLog
from k2jax.agents.verifier import FAILED
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.errors import UserError
from k2jax.tasks.code.verifier import UnitTests, verdict_of
from k2jax.trajectory import Node, Trajectory

TESTS = ["assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]\nassert math.floor(add(0.5, 1)) == 1"]
TASK = Task("t", "code", (), "unit_tests", metadata={"tests": TESTS, "setup": "import math"})


def trajectory(answer: str, status="finished") -> Trajectory:
    ids = np.zeros(1, np.int32)
    message = {"role": "assistant", "content": answer}
    node = Node(
        -1, ids, ids == 0, ids.astype(np.float32), versions=ids.astype(np.int64), turn=0, finish="stop", message=message
    )
    return Trajectory("t", "code", (0, 0, 0), nodes=[node], status=status)


def block(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


def judged(*answers: str, task=TASK, status="finished"):
    backend = make_backend()

    async def run():
        rewards = []
        for answer in answers:
            async with await backend.open(UnitTests().spec) as sandbox:
                rewards.append(await UnitTests().score(task, trajectory(answer, status), sandbox))
        return rewards

    return asyncio.run(run())


def test_a_right_program_passes_and_a_wrong_one_says_which_tests_failed():
    right, wrong = judged(
        block("def add(a, b):\n    print('noise')\n    return a + b"), block("def add(a, b):\n    return 3")
    )
    assert right.value == 1 and right.parts == {"passed": 1.0}
    assert wrong.value == 0 and wrong.parts == {"passed": 0.5} and wrong.info["failed"] == 1
    assert FAILED not in wrong.info  # which the metric failed_verdicts counts


ATTACKS = {
    "exit": "import os\nos._exit(0)",
    "exit when called": "def add(a, b):\n    import os\n    os._exit(0)",
    "always equal": "class E:\n    def __eq__(self, o): return True\ndef add(a, b): return E()",
    "planted verdict": 'print(\'{"secret": "x", "failed": 0, "reasons": []}\')',
    "builtins": "import builtins\nbuiltins.AssertionError = None\nbuiltins.len = lambda x: 0\ndef add(a, b): return 0",
    "judge's memory": (
        "import os\ndef add(a, b):\n    p = os.getppid()\n"
        "    open(f'/proc/{p}/fd/1', 'w').write('x')\n    return open(f'/proc/{p}/mem', 'rb').read(1)"
    ),
    "kill": "import os\nos.kill(os.getppid(), 9)",
    "sitecustomize": "open('/work/sitecustomize.py', 'w').write('import os; os._exit(0)')\ndef add(a, b): return 0",
    "syntax": "def add(a, b) return",
    "nothing": "",
}


def test_no_program_passes_by_attacking_its_judge():
    rewards = judged(*map(block, ATTACKS.values()))
    assert {name: reward.value for name, reward in zip(ATTACKS, rewards, strict=True)} == dict.fromkeys(ATTACKS, 0.0)


def test_a_verdict_without_the_secret_of_the_call_is_none():
    line = b'noise\n{"secret": "right", "failed": 0, "reasons": []}\n'
    assert verdict_of(line, "right") == {"secret": "right", "failed": 0, "reasons": []}
    for other in (verdict_of(line, "wrong"), verdict_of(line + b"more", "right"), verdict_of(b"", "right")):
        assert other is None


def test_a_program_that_hangs_fails_at_the_time_limit(monkeypatch):
    monkeypatch.setattr("k2jax.tasks.code.verifier.TIMEOUT", 1.0)
    (reward,) = judged(block("while True: pass"))
    assert reward.value == 0 and reward.info["ended_by"] == "time"


def test_only_the_last_block_of_a_finished_answer_counts():
    good, bad = block("def add(a, b): return a + b"), block("def add(a, b): return 0")
    assert [r.value for r in judged(bad + good, good + bad, "def add(a, b): return a + b")] == [1, 0, 0]
    assert judged(good, status="truncated")[0].value == 0


def test_expected_exceptions_reach_the_tests():
    raising = "try:\n    first([])\nexcept IndexError:\n    pass\nelse:\n    raise AssertionError"
    task = Task("t", "code", (), "unit_tests", metadata={"tests": [raising, "assert first([4]) == 4"]})
    good, bad = judged(block("def first(x): return x[0]"), block("def first(x): return 4"), task=task)
    assert (good.value, bad.value) == (1, 0)


def test_files_of_tasks_are_read_and_divided(tmp_path):
    file = tmp_path / "code.jsonl"
    records = [{"prompt": f"Write f{n}.", "tests": [f"assert f{n}() == {n}"]} for n in range(60)]
    file.write_text("\n".join(map(json.dumps, records)))
    train, test = (load_tasks("code", (f"path={file}",), split) for split in ("train", "test"))
    assert len(train) + len(test) == 60 and {t.id for t in train}.isdisjoint(t.id for t in test)
    assert all(task.metadata["tests"][0] not in task.instruction[0]["content"] for task in train)
    file.write_text('{"prompt": "x", "tests": "assert 1"}')
    with pytest.raises(UserError, match=r"record 1 of .* needs a prompt and a list of tests"):
        load_tasks("code", (f"path={file}",))
    with pytest.raises(UserError, match=r"needs the option path="):
        load_tasks("code", ())


def test_a_scorer_judges_programs_in_sandboxes_once_and_replays_its_verdicts(tmp_path):
    answers = [block("def add(a, b): return a + b"), block("def add(a, b): return 0")]
    for replayed in (0, 2):
        episodes = [trajectory(answer) for answer in answers]
        for sample, episode in enumerate(episodes):
            episode.key = (0, 0, sample)
        with VerifierPool(workers=1, timeout=10, retries=0) as pool:
            scorer = Scorer(pool, VerdictLog(tmp_path), make_backend())

            async def judge(scorer=scorer, episodes=episodes):
                await asyncio.gather(*(scorer.judge(TASK, episode) for episode in episodes))

            asyncio.run(judge())
        assert [(episode.status, episode.reward.value) for episode in episodes] == [("finished", 1), ("finished", 0)]
        assert scorer.replayed == replayed
