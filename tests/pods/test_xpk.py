"""Scripts for xpk: what it is asked for, and that its template hands the trainer the words as typed."""

import re
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import yaml

from k2jax.pods.xpk import xpk_script
from tests.pods.runs import bash, expand, fake_commands, folder_parts, one_line, run, words_of
from tests.refusal import refused

XPK = "printf '%s\\0' \"$@\" > $T/$1-words"
# How xpk 1.16 puts a command and a variable into its manifest (xpk/core/docker_container.py, docker_resources.py).
COMMAND = """\
- |
  ({command}) & PID=$!;
  wait $PID;
"""
VARIABLE = 'value: "{value}"\n'


def asked(folder, spec):
    """The words of ``xpk storage`` and of ``xpk workload`` when the script runs."""
    done = bash(xpk_script(spec), fake_commands(folder, xpk=XPK))
    assert done.returncode == 0, done.stderr
    return words_of(folder / "storage-words"), words_of(folder / "workload-words")


def flag(words, name):
    (word,) = (word for word in words if word.startswith(f"--{name}="))
    return word.partition("=")[2]


def test_what_xpk_is_asked_for(tmp_path):
    storage, workload = asked(tmp_path, run(tpu="v5e-8", slices=2, capacity="spot", workdir="gs://my.bucket/k2"))
    assert storage[:3] == ["storage", "attach", "k2jax-my-bucket"] and flag(storage, "bucket") == "my.bucket"
    assert flag(storage, "mount-point") == "/gcs/my.bucket" and flag(workload, "storage") == "k2jax-my-bucket"
    assert workload[:2] == ["workload", "create"] and flag(workload, "tpu-type") == "v5litepod-2x4"
    assert flag(workload, "restart-on-exit-codes") == "1"  # of ours only 2 and 3 are neither 1 nor above 126
    assert "--spot" in workload and flag(workload, "max-restarts") == "100"


def test_capacities(tmp_path):
    assert "--flex" in asked(tmp_path, run(capacity="flex"))[1]
    _, words = asked(tmp_path, run(capacity="reserved", reservation="mine"))
    assert flag(words, "reservation") == "mine" and "--spot" not in words


@given(st.lists(one_line, max_size=3), folder_parts, one_line)
@settings(max_examples=25, deadline=None)
def test_any_printable_text_reaches_the_trainer_as_typed(tmp_path_factory, arguments, folder, value):
    value, folder = (text.replace('"', "").replace("\\", "") for text in (value, folder))
    path = tmp_path_factory.mktemp("xpk")
    spec = run(arguments=tuple(arguments), workdir=f"gs://bucket/{folder}", environment=(("V", value),))
    _, words = asked(path, spec)
    pairs = [word.removeprefix("--env=").partition("=") for word in words if word.startswith("--env=")]
    known = {"HOME": "/root", "A": "a"}
    for name, _, text in pairs:
        known[name] = expand(yaml.safe_load(VARIABLE.format(value=text))["value"], known)
    assert {name: known[name] for name in spec.variables} == spec.variables
    (command,) = yaml.safe_load(COMMAND.format(command=flag(words, "command")))
    environment = fake_commands(path, python="printf '%s\\0' \"$@\" > $T/python-words")
    subprocess.run(["bash", "-c", expand(command, known)], env=environment, check=True)
    assert words_of(path / "python-words") == [*spec.command[1:]]


def test_sigterm_reaches_the_trainer(tmp_path):
    """xpk's shell signals the job it has put in the background, which must be the trainer and no shell around it."""
    command = flag(asked(tmp_path, run())[1], "command")
    trainer = "trap 'echo saved > $T/saved; exit 143' TERM; touch $T/up; while true; do /bin/sleep 0.05; done"
    shell = f"({command}) & PID=$!; while [[ ! -f $T/up ]]; do /bin/sleep 0.05; done; kill -SIGTERM $PID; wait $PID"
    done = bash(shell, fake_commands(tmp_path, python=trainer))
    assert done.returncode == 143 and (tmp_path / "saved").read_text() == "saved\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arguments": ("--config.a=\n",)}, "xpk cannot pass on '--config.a=\\n', which has control characters"),
        ({"environment": (("A", 'a"b'),)}, "xpk cannot pass on --env A='a\"b'"),
        ({"environment": (("A", "a\\b"),)}, "which has quotes or backslashes; use --backend=jobset"),
        ({"environment": (("A", "a\tb"),)}, "xpk cannot pass on --env A="),
        ({"service_account": "sa"}, "xpk chooses the service account itself"),
    ],
)
def test_what_xpk_would_garble_is_refused(changes, message):
    with refused(re.escape(message)):
        xpk_script(run(**changes))
