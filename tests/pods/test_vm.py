"""Scripts for TPU VMs, run by bash against commands that only pretend: what is restarted, recreated and deleted."""

import re
import shlex
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.pods.shell import command_line, here_document
from k2jax.pods.vm import startup_script, vm_script
from tests.pods.runs import bash, fake_commands, folder_parts, run, texts, words_of
from tests.refusal import refused

QUIET = {name: "exit 0" for name in ("gcsfuse", "mkdir", "apt_get", "curl")}
# Nothing takes time; a host that has reported twice is deleted.
SLEEP = "if [[ $1 == 300 && $(wc -l < $T/reported) == 2 ]]; then kill -KILL $PPID; fi"
# docker run: takes the next exit code of $T/codes, and leaves its words in $T/words.
DOCKER = """
if [[ $1 != run ]]; then exit 0; fi
printf '%s\\0' "$@" > $T/words
echo run >> $T/runs
code=$(sed -n "$(wc -l < $T/runs)p" $T/codes)
exit ${code:-0}
"""
GCLOUD_OF_A_HOST = 'if [[ $* == "storage cp - "* ]]; then echo "$(cat) ${@: -1}" >> $T/reported; fi'


def host(folder, codes, spec, **commands):
    """What a host does whose trainer exits with these codes: (times started, what it reports again and again)."""
    (folder / "codes").write_text("".join(f"{code}\n" for code in codes))
    for name in ("runs", "reported"):
        (folder / name).write_text("")
    pretend = {
        "sleep": SLEEP,
        "docker": DOCKER,
        "gcloud": GCLOUD_OF_A_HOST,
        "hostname": "echo host-0",
        "mountpoint": "exit 1",
    }
    environment = fake_commands(folder, **(QUIET | pretend | commands))
    bash(startup_script(spec), environment)
    first, second = (folder / "reported").read_text().splitlines()
    assert first == second
    return (folder / "runs").read_text().count("run"), first


@pytest.mark.parametrize(
    ("codes", "times", "final"),
    [
        ([0], 1, 0),
        ([2], 1, 2),
        ([3], 1, 3),
        ([143, 0], 2, 0),
        ([1, 134, 137, 143, 3], 5, 3),
        ([1] * 9, 4, 1),  # three restarts
    ],
)
def test_a_host_restarts_what_a_restart_can_mend(tmp_path, codes, times, final):
    found = host(tmp_path, codes, run(max_restarts=3 if len(codes) == 9 else 100))
    assert found == (times, f"{final} gs://bucket/runs/k2/launch/exit-codes/host-0")


def test_a_host_that_cannot_mount_tries_again_then_reports(tmp_path):
    counted = "echo try >> $T/tries; [[ $(wc -l < $T/tries) -gt 2 ]]"
    assert host(tmp_path, [0], run(), gcsfuse=counted)[0] == 1
    assert (tmp_path / "tries").read_text().count("try") == 3
    assert host(tmp_path, [0], run(), gcsfuse="exit 1") == (0, "1 gs://bucket/runs/k2/launch/exit-codes/host-0")


@given(st.lists(texts, max_size=3), folder_parts, texts)
@settings(max_examples=20, deadline=None)
def test_any_text_reaches_docker_as_typed(tmp_path_factory, arguments, folder, value):
    spec = run(arguments=tuple(arguments), workdir=f"gs://bucket/{folder}", environment=(("V", value),))
    path = tmp_path_factory.mktemp("host")
    assert host(path, [0], spec)[0] == 1
    words = words_of(path / "words")
    start = words.index(spec.image)
    assert words[start + 1 :] == ["python", "-m", "k2jax.train", f"--workdir=/gcs/bucket/{folder}", *arguments]
    flags = words[:start]
    assert [f"--env={k}={v}" for k, v in spec.variables.items()] == [f for f in flags if f.startswith("--env=")]
    assert {"--privileged", "--network=host", "--volume=/gcs/bucket:/gcs/bucket", "--stop-timeout=600"} <= set(flags)


@given(st.lists(texts | texts.map("--flag={}".format), max_size=5))
@settings(max_examples=50, deadline=None)
def test_the_shell_reads_commands_back(words):
    done = subprocess.run(["bash", "-c", command_line(["printf", "%s\\0", *words])], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == (words or [""])


@given(texts)
@settings(max_examples=30, deadline=None)
def test_documents_reach_commands_unchanged(text):
    done = subprocess.run(["bash", "-c", here_document("cat", text + "\n")], capture_output=True, check=True)
    assert done.stdout.decode() == text + "\n"


# A pretended Cloud TPU: each list takes a line of $T/states (-: there is none, !: it fails); codes lie in $T/store.
GCLOUD = """
echo "$*" >> $T/calls
case "$*" in
  *queued-resources\\ list*)
    state=$(head -n 1 $T/states)
    sed -i 1d $T/states
    if [[ $state == ! ]]; then exit 1; fi
    if [[ $state != - ]]; then echo $state; fi
    ;;
  *create*)
    if [[ -f $T/refuse ]]; then exit 1; fi
    file="${@: -1:1}"
    cp "${file##*startup-script=}" $T/startup
    ;;
  "storage rm"*) rm -f $T/store/* ;;
  "storage cat"*) cat $T/store/* ;;
esac
"""
# The hosts leave their codes when the states are used up; nothing else takes time.
HOSTS_END = "if [[ ! -s $T/states ]]; then cp $T/after/* $T/store; echo ACTIVE > $T/states; fi"


def watch(folder, states, codes, spec, sleep=HOSTS_END, gcloud=GCLOUD):
    """(what was asked of the queued resource, exit code, printed); a code of an earlier run, 3, lies there already."""
    for name in ("store", "after"):
        (folder / name).mkdir()
    (folder / "store/stale").write_text("3\n")
    for i, code in enumerate(codes):
        (folder / f"after/host-{i}").write_text(f"{code}\n")
    (folder / "states").write_text("".join(f"{state}\n" for state in states))
    done = bash(vm_script(spec), fake_commands(folder, gcloud=gcloud, sleep=sleep))
    calls = (folder / "calls").read_text().splitlines()
    verbs = [line.split()[3] for line in calls if line.startswith("compute tpus queued-resources")]
    return [verb for verb in verbs if verb != "list"], done.returncode, done.stdout + done.stderr


def test_a_run_is_created_watched_and_deleted(tmp_path):
    spec = run(tpu="v5p-16")  # two hosts
    calls, code, printed = watch(tmp_path, ["-", "WAITING_FOR_RESOURCES", "ACTIVE"], [0, 0], spec)
    assert (calls, code) == (["create", "delete"], 0)
    assert "k2 ended with exit code 0" in printed
    assert (tmp_path / "startup").read_text() == startup_script(spec)


def test_a_preempted_run_is_created_anew(tmp_path):
    states = ["-", "ACTIVE", "SUSPENDING", "SUSPENDED", "ACTIVE", "FAILED", "ACTIVE"]
    calls, code, _ = watch(tmp_path, states, [0], run(tpu="v5p-8"))
    assert (calls, code) == (["create", "delete", "create", "delete", "create", "delete"], 0)


def test_a_cloud_that_does_not_answer_is_asked_again(tmp_path):
    calls, code, _ = watch(tmp_path, ["!", "-", "!", "ACTIVE", "!"], [0], run(tpu="v5p-8", max_restarts=0))
    assert (calls, code) == (["create", "delete"], 0)
    refused = GCLOUD.replace('case "$*" in', 'case "$*" in\n*delete*) [[ $(grep -c delete $T/calls) == 3 ]];;', 1)
    (tmp_path / "b").mkdir()
    calls, code, _ = watch(tmp_path / "b", ["-", "ACTIVE"], [2], run(tpu="v5p-8"), gcloud=refused)
    assert (calls, code) == (["create", *["delete"] * 3], 2)


def test_a_running_one_is_watched_not_created(tmp_path):
    calls, code, _ = watch(tmp_path, ["ACTIVE"], [2], run(tpu="v5p-8"))
    assert calls == ["delete"] and code == 3  # the code that lay there: the run had ended


def test_failure_waits_for_no_one_and_success_for_every_host(tmp_path):
    (tmp_path / "a").mkdir()
    calls, code, _ = watch(tmp_path / "a", ["-", "ACTIVE"], [0, 3, 0], run(tpu="v5p-2048", slices=2))
    assert (calls, code) == (["create", "delete"], 3)
    (tmp_path / "b").mkdir()
    # All codes there will be are there after the first minute; the test leaves after the fourth.
    leave = "echo >> $T/left; cp $T/after/* $T/store; echo ACTIVE >> $T/states; [[ $(wc -l < $T/left) -lt 4 ]]"
    calls, _, printed = watch(tmp_path / "b", ["-"], [0] * 3, run(tpu="v5p-16", slices=2), sleep=leave)
    assert calls == ["create"] and "ended" not in printed  # three of four hosts are done
    (tmp_path / "c").mkdir()
    assert watch(tmp_path / "c", ["-"], [0], run(tpu="v5e-8"), sleep=leave)[0] == ["create", "delete"]


def test_a_run_that_cannot_be_created_is_given_up(tmp_path):
    (tmp_path / "refuse").write_text("")
    spec = run(tpu="v5p-8", max_restarts=2)
    calls, code, printed = watch(tmp_path, ["-"] * 9, [], spec, sleep="exit 0")
    assert (calls, code) == (["create"] * 3, 1)
    assert "error: k2 was requested 3 times" in printed and "ended" not in printed


@pytest.mark.parametrize(
    "spec",
    [run(), run(tpu="v5e-8", slices=2, capacity="spot", image="python:3.11"), run(workdir="gs://bucket/it's & b")],
)
def test_shellcheck_finds_nothing(tmp_path, spec):
    (tmp_path / "watch.sh").write_text("#!/bin/bash\n" + vm_script(spec))
    (tmp_path / "startup.sh").write_text(startup_script(spec))
    for name in ("watch.sh", "startup.sh"):
        done = subprocess.run(["shellcheck", str(tmp_path / name)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_what_is_asked_of_the_cloud():
    """The golden script of two spot slices has the rest."""
    text = vm_script(run(tpu="v6e-16", capacity="reserved", service_account="sa@x"))
    create = shlex.split(text.split("2> /dev/null || true\n")[1].split("\n}")[0].replace("\\\n", ""))
    assert {"--node-id=k2", "--reserved", "--service-account=sa@x", "--accelerator-type=v6e-16"} < set(create)
    assert "'--filter=name~/k2$' '--format=value(state.state)'" in text  # not those whose name ends so
    assert "node-count" not in text and "configure-docker us-docker.pkg.dev --quiet" in text
    assert "configure-docker" not in vm_script(run(image="python:3.11"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tpu": "tpu7x-128"}, "tpu7x is available only through GKE; use --backend=jobset or --backend=xpk"),
        ({"tpu": "v5p:4x4x16"}, "256 v5p chips does not have the shape v5p:4x4x16; use --tpu=v5p-512"),
        ({"capacity": "flex"}, "VMs support --capacity=on_demand, spot or reserved"),
        ({"capacity": "reserved", "reservation": "mine"}, "no --reservation"),
    ],
)
def test_what_vms_cannot_do_is_refused(changes, message):
    with refused(re.escape(message)):
        vm_script(run(**changes))
