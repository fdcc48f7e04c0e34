"""Fields of published rows: what is read of each data set's, and what is refused by name."""

import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environments.image_repository import PLACE
from k2jax.errors import UserError
from k2jax.tasks.swe_images.row import read_row
from k2jax.tasks.swe_images.row_commands import files_of_tests, marked_log

PATCH = "diff --git a/tests/t_one/tests.py b/tests/t_one/tests.py\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b"
BASE = {
    "instance_id": "org__it-1",
    "repo": "org/it",
    "base_commit": "a" * 40,
    "problem_statement": "Wrong.",
    "patch": "",
    "test_patch": PATCH,
    "FAIL_TO_PASS": '["tests/test_a.py::test_new"]',
    "PASS_TO_PASS": "[]",
}
"""A row of SWE-bench's first columns."""


def read(image="x/{id}:latest", **fields):
    return read_row(BASE | fields, image)


def test_rows_of_swe_bench_without_a_command_run_what_its_harness_runs():
    row = read()
    assert (row.image, row.tests, row.parser) == (
        "x/org_1776_it-1:latest",
        "python -m pytest -rA tests/test_a.py",
        "pytest",
    )
    assert row.test_patch == PATCH + "\n" and row.fail_to_pass == ["tests/test_a.py::test_new"]
    django = read(repo="django/django", FAIL_TO_PASS=["test_a (t_one.tests.A)"])
    assert django.tests.endswith("--parallel 1 t_one.tests") and django.parser == "unittest"
    sympy = read(repo="sympy/sympy", FAIL_TO_PASS=["test_a"])
    assert sympy.tests.endswith("bin/test -C --verbose tests/t_one/tests.py") and sympy.parser == "sympy"
    spaces = read(PASS_TO_PASS=["a b.py::x", "-p.py::x", "c.py::x[a::b", "c.py::y"])
    assert spaces.tests == "python -m pytest -rA tests/test_a.py c.py"


def test_rows_of_other_data_sets():
    fields = {"image": "docker.io/swebench/x:1", "eval_script": "run", "log_parser": "parse_log_gotest"}
    published = read_row(BASE | fields, "")
    assert (published.image, published.tests, published.parser, published.marked) == ("swebench/x:1", "run", "go", True)
    config = {"test_cmd": ["cd x", "cargo test"], "log_parser": "parse_log_cargo", "install": "cargo build"}
    rebench = read(image_name="docker.io/swerebench/x", language="rust", install_config=json.dumps(config))
    assert (rebench.tests, rebench.parser, rebench.image) == ("cd x\ncargo test", "cargo", "swerebench/x")
    live = read(docker_image="y", test_cmds=["a", "b"], rebuild_cmds=["c"], print_cmds=["d"], log_parser="pytest")
    assert (live.build, live.tests, live.report, live.marked) == ("c", "a\nb", "d", False)
    own = read(workdir="/app/", env='{"A": "b"}', timeout=5)
    assert (own.workdir, own.env, own.seconds) == ("/app", {"A": "b"}, 5.0)
    prose = read(
        eval_script=f"git apply - <<E\n{PATCH}\n docker ps\nE", test_patch=f"{PATCH}\n docker ps", log_parser="tap"
    )
    assert prose.parser == "tap"


REFUSED = [
    ({"before_repo_set_cmd": "git checkout x"}, r"sets the repository up \(before_repo_set_cmd\)"),
    ({"image_assets": '{"a": 1}'}, "files that are fetched"),
    ({"services": ["postgres"]}, "services beside its tests"),
    ({"docker_compose": "x"}, "services beside its tests"),
    ({"parser": "def f(log): pass"}, "a program that reads its log"),
    ({"eval_type": "fail_only"}, "eval_type is 'fail_only'"),
    ({"platform": "windows"}, "another one than Linux"),
    ({"test_cmd": "cd x && docker compose up"}, "its commands start docker"),
    ({"test_cmd": "sudo service redis start"}, "its commands start service"),
    ({"log_parser": "parse_log_ocaml_v5"}, "log_parser 'parse_log_ocaml_v5' is unknown"),
    ({"log_parser": "def parse_log(log):\n    return {}"}, "no program of a row runs here"),
    ({"test_cmd": "make check", "language": "c"}, "form is unknown"),
    ({"language": "go"}, "it has no test_cmd"),
    ({"FAIL_TO_PASS": ["test_a"]}, "names of its tests no files"),
    ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty"),
    ({"FAIL_TO_PASS": "[1]"}, "no name of a test"),
    ({"FAIL_TO_PASS": "[" * 100_000}, "is no JSON"),
    ({"FAIL_TO_PASS": None}, "has no FAIL_TO_PASS"),
    ({"PASS_TO_PASS": {"a": 1}}, "is no list of up to"),
    ({"PASS_TO_PASS": ["a"] * 100_001}, "is no list of up to"),
    ({"PASS_TO_PASS": ["a" * 5000]}, "no name of a test"),
    ({"base_commit": None}, "full id of a commit, which a row needs; of SWE-smith's"),
    ({"base_commit": "--all"}, "no full id"),
    ({"problem_statement": " "}, "problem_statement is .* no text"),
    ({"problem_statement": "x" * (9 << 20)}, "has more than"),
    ({"instance_id": "../x"}, "no name of a row"),
    ({"instance_id": ["x"]}, "no text"),
    ({"workdir": "x"}, "no absolute path"),
    ({"workdir": "/a/../b"}, "no absolute path"),
    ({"env": {"A=B": "x"}}, "no variable"),
    ({"env": {"A": 1}}, "no variable"),
    ({"env": [1]}, "no table"),
    ({"timeout": -1}, "no number of seconds"),
    ({"timeout": "5"}, "no number of seconds"),
    ({"test_cmd": ["a", 1]}, "no command"),
    ({"test_cmd": "a\0b"}, "no command"),
    ({"patch": "\ud800"}, "half surrogates"),
    ({"install_config": "{"}, "is no JSON"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_cannot_be_run_here_is_refused_by_name(fields, reason):
    with pytest.raises(UserError, match=reason) as refused:
        read(**fields)
    assert len(str(refused.value)) < 500 and "\n" not in str(refused.value)


def test_a_row_must_name_an_image():
    with pytest.raises(UserError, match="it names no image"):
        read(image="")


def test_a_file_with_a_refused_row_is_an_error_or_goes_on_without_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        BASE,
        BASE | {"instance_id": "org__it-2", "services": "x"},
        BASE | {"instance_id": "org__it-3", "timeout": 9e9},
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(UserError, match=r"row 2 of .*rows.jsonl, org__it-2: it asks for services .* skip=true"):
        load_tasks("swe_images", (f"path={path}",), "all")
    options = (f"path={path}", "skip=true", "test_seconds=60", "memory=128", "image=y/{id}")
    tasks = load_tasks("swe_images", options, "all")
    assert [task.id for task in tasks] == ["org__it-1", "org__it-3"]
    assert tasks[1].limits.test_seconds == 60 and tasks[1].limits.memory == 128 and tasks[1].image == "y/org_1776_it-3"
    assert tasks[0].metadata[PLACE] == {"workdir": "", "env": {}}
    assert PATCH not in json.dumps(tasks[0].instruction)


def test_what_stands_between_marks():
    secret = "0123"
    log = marked_log(b"a\nbegin-0123\nb\nend-0123\nc\nend-0123\n", secret, False)
    assert log == b"b\nend-0123\nc"
    assert marked_log(b"begin-0123\nb\nend-0123\n", secret, False) is None
    assert marked_log(b"\nbegin-0123\n", secret, False) is None
    inner = b"x\n+ : '>>>>> Start Test Output'\nb\n+ : '>>>>> End Test Output'\ny"
    whole = b"\nbegin-0123\n" + inner + b"\nend-0123\n"
    assert b"x" in marked_log(whole, secret, False) and b"y" not in marked_log(whole, secret, True)
    assert files_of_tests(["a.py::x", "b::y", "c.py", "../d.py::z"]) == ["a.py", "../d.py"]
