"""Terminal tasks: reference solutions earn 1, doing nothing earns 0, and no file left behind doctors the test."""

import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.scripted import called, play_actions
from k2jax.errors import UserError
from k2jax.tasks.terminal.dataset import KINDS
from tests.tasks.conftest import rewards


def test_reference_solutions_of_every_kind_earn_1_and_the_null_policy_0(check):
    tasks = load_tasks("terminal", (f"count={len(KINDS)}",))
    check(tasks, oracles.get("terminal"))
    assert {task.domain for task in tasks} == {f"terminal/{kind}" for kind in KINDS}
    assert all(task.metadata["test"] not in task.instruction[0]["content"] for task in tasks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_reference_solutions_of_many_seeds_earn_1(check, seed):
    check(load_tasks("terminal", ("count=40", f"seed={seed}")), oracles.get("terminal"))


ATTACKS = (
    "printf 'exit 0' > NAME.sh; printf 'import os; os._exit(0)' | tee sitecustomize.py json.py tarfile.py",
    "ln -s /dev/zero NAME.sh",
    "printf 'kill -9 $PPID' > NAME.sh",
    'printf \'echo "{\\"secret\\": \\"\\", \\"reason\\": \\"\\"}" >/proc/$PPID/fd/1\' > NAME.sh',
    "rm -rf /work/* ; mkfifo pipe; mkdir -p a/b; chmod 000 a",
)


def test_no_file_that_is_left_behind_doctors_the_test(play):
    tasks = load_tasks("terminal", ("kinds=scripts", f"count={len(ATTACKS)}"))
    attacks = dict(zip([task.id for task in tasks], ATTACKS, strict=True))

    def attack(task, messages):
        name = task.metadata["test"].partition("'/bin/sh', '")[2].partition(".sh")[0]
        return play_actions([called("shell", command=attacks[task.id].replace("NAME", name))], messages)

    assert rewards(play(tasks, attack)) == [0.0] * len(ATTACKS)


BESIDE = {  # what lies beside a right answer, and what the verdict says was left out
    "nothing": (":", []),
    "more than an archive holds": ("head -c 9000000 /dev/urandom > big; echo x > small", ["big: too large beside"]),
    "a file that cannot be read": ("echo x > y; chmod 000 y", []),
    "a folder that cannot be read": ("mkdir d; echo x > d/y; chmod 000 d", []),
    "a megabyte, and a repository": ("head -c 1048576 /dev/urandom > x; mkdir .git; head -c 600000 x > .git/p", []),
    "zeros, sparse": ("head -c 30000000 /dev/zero > a; truncate -s 60M b; truncate -s 60M c", ["b: too", "c: too"]),
    "links, pipes, names": ("ln s l; ln -s /etc/passwd p; mkfifo q; touch $(printf '\\377') 'a b' é; ln out hard", []),
    "as many files as there may be": ("i=0; while echo $i > f$i; do i=$((i+1)); done 2>/dev/null; true", ["f"]),
    "a path that is too long": ("n=$(printf d%.0s $(seq 200)); for i in $(seq 30); do mkdir $n; cd $n; done", ["d"]),
    "what the test needs, and is larger": ("", ["beside: too large"]),
}  # fmt: skip


def test_a_right_answer_is_worth_1_whatever_lies_beside_it(play, tmp_path):
    test = "assert read('out') == 'hi\\n'\nassert oct(os.stat('.').st_mode)[-3] == '7'\n"
    lines = []
    for number, (script, _) in enumerate(list(BESIDE.values())[:-1]):
        solution = f"echo hi > out; ({script})"
        lines.append(json.dumps({"instruction": f"{number} ", "files": {}, "solution": solution, "test": test}))
    large = "head -c 4000000 /dev/urandom > out/large; head -c 3000000 /dev/urandom > beside"
    needs_large = {"test": "assert os.path.getsize('out/large') == 4000000", "outputs": ["out"], "files": {}}
    lines.append(json.dumps({"instruction": f"{len(lines)} ", "solution": f"mkdir out; {large}"} | needs_large))
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))
    tasks = [task for split in ("train", "test") for task in _loaded(path, split)]
    for task, episode in zip(tasks, play(tasks, oracles.get("terminal")), strict=True):
        name = list(BESIDE)[int(task.instruction[0]["content"].split()[0])]
        beginnings, left_out = BESIDE[name][1], episode.reward.info.get("left_out", [])
        assert episode.reward.value == 1.0 and bool(left_out) == bool(beginnings), (name, episode.reward)
        assert all(any(each.startswith(beginning) for each in left_out) for beginning in beginnings), (name, left_out)


def test_tasks_of_a_file_are_read_and_wrong_ones_refused(check, tmp_path):
    path = tmp_path / "tasks.jsonl"
    record = {
        "instruction": "Copy a to b.",
        "files": {"a": "x"},
        "solution": "cp a b",
        "test": "assert read('b') == 'x'",
    }
    path.write_text(json.dumps(record))
    tasks = [task for split in ("train", "test") for task in _loaded(path, split)]
    check(tasks, oracles.get("terminal"))
    path.write_text(json.dumps(record | {"files": {"a": 1}}))
    with pytest.raises(UserError, match=r"terminal: record 1 of .* needs instruction"):
        load_tasks("terminal", (f"path={path}",))


def _loaded(path, split):
    try:
        return load_tasks("terminal", (f"path={path}",), split)
    except UserError:
        return []
