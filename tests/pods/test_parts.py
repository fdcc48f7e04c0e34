"""Launches of several parts: what restarts with what, who reaches whom, and what each backend refuses."""

import importlib
import re
import runpy
import subprocess
import sys
from unittest import mock

from absl import flags
import pytest

from k2jax import cli
from k2jax.pods import launch, modules
from k2jax.pods.jobset import CONTAINER, jobset, jobset_script
from k2jax.pods.slices import parse_slice
from k2jax.pods.vm import vm_script
from k2jax.pods.xpk import xpk_script
from tests.pods import golden
from tests.pods.runs import bash, expand, fake_commands, run, words_of
from tests.refusal import refused

BESIDE = {"engines": "v5p-128", "engine_slices": 2, "workers": 3, "machine": "n2-standard-32"}
RL = {"module": "k2jax.rl", **BESIDE}
ROOT = golden.FOLDER.parents[2]


def jobs_of(spec):
    """Replicated jobs by their names, each with its Job and its pod."""
    listed = jobset(spec)["spec"]["replicatedJobs"]
    jobs = [(each, each["template"]["spec"]) for each in listed]
    return {each["name"]: (each, job, job["template"]["spec"]) for each, job in jobs}


def outcome(spec, name, code, failures):
    """What follows when a pod of a part has failed so often, by the rules of Kubernetes and of JobSet."""
    job, reason = jobs_of(spec)[name][1], ""
    for rule in job["podFailurePolicy"]["rules"]:
        if code in rule["onExitCodes"]["values"] and rule["onExitCodes"]["containerName"] == CONTAINER:
            reason = {"FailJob": "PodFailurePolicy"}[rule["action"]]
    if not reason and failures <= job.get("backoffLimitPerIndex", job.get("backoffLimit")):
        return "its pod is replaced"
    actions = {"FailJobSet": "all end"}
    rules = jobset(spec)["spec"]["failurePolicy"]["rules"]
    return next((actions[rule["action"]] for rule in rules if reason in rule["onJobFailureReasons"]), "all restart")


@pytest.mark.parametrize(
    ("name", "code", "failures", "follows"),
    [
        ("main", 1, 1, "all restart"),
        ("main", 143, 1, "all restart"),
        ("main", 3, 1, "all end"),
        ("engine-1", 1, 1, "its pod is replaced"),
        ("engine-1", 137, 7, "its pod is replaced"),
        ("engine-1", 2, 1, "all end"),
        ("engine-0", 1, 8, "all restart"),
        ("workers", 1, 7, "its pod is replaced"),
        ("workers", 137, 1, "its pod is replaced"),
    ],
)
def test_engines_and_workers_restart_without_the_trainer(name, code, failures, follows):
    assert outcome(run(**RL, max_restarts=7), name, code, failures) == follows


def test_a_run_is_over_with_its_trainer_and_the_others_begin_after_it():
    manifest = jobset(run(**RL))
    assert manifest["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["main"]}
    jobs = jobs_of(run(**RL))
    assert list(jobs) == ["main", "engine-0", "engine-1", "workers"]
    assert "dependsOn" not in jobs["main"][0]
    assert all(jobs[name][0]["dependsOn"] == [{"name": "main", "status": "Ready"}] for name in list(jobs)[1:])
    hosts = {name: (each["replicas"], job["parallelism"], job["completions"]) for name, (each, job, _) in jobs.items()}
    assert hosts == {"main": (1, 256, 256), "engine-0": (1, 16, 16), "engine-1": (1, 16, 16), "workers": (1, 3, 3)}
    assert "successPolicy" not in jobset(run())["spec"]


def test_workers_have_machines_to_themselves_and_slices_node_pools():
    jobs = jobs_of(run(**RL, capacity="spot", secret="keys"))
    for name in ("main", "engine-0", "engine-1"):
        each, _, pod = jobs[name]
        assert "exclusive-topology" in next(iter(each["template"]["metadata"]["annotations"]))
        assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == ("8x8x16" if name == "main" else "4x4x4")
    each, _, pod = jobs["workers"]
    assert "metadata" not in each["template"] and "tolerations" not in pod
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "n2-standard-32"}
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == {
        "jobset.sigs.k8s.io/jobset-name": "k2",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
    }
    (container,) = pod["containers"]
    assert "resources" not in container
    variables = {pair["name"]: pair["value"] for pair in container["env"]}
    assert variables["JAX_PLATFORMS"] == "cpu" and "LIBTPU_INIT_ARGS" not in variables
    assert all(pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys"}}] for _, _, pod in jobs.values())


def command_of(name, **changes):
    (container,) = jobs_of(run(**{**RL, **changes}))[name][2]["containers"]
    return [expand(word, {}) for word in container["command"]]


@pytest.mark.parametrize(("host", "heads"), [("k2-main-0-0", 1), ("k2-main-0-1", 0), ("k2-main-1-0", 0)])
def test_the_first_host_alone_has_the_head_of_ray(tmp_path, host, heads):
    """The trainer's command, run by bash with commands that pretend."""
    write = 'printf "%s\\0" "$@" > $T/${0##*/}'
    environment = fake_commands(tmp_path, ray=write, python=write) | {"HOSTNAME": host}
    done = subprocess.run(command_of("main"), env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ray").exists() == bool(heads)
    python = words_of(tmp_path / "python")
    assert python[:3] == ["-m", "k2jax.rl", "--workdir=/gcs/bucket/runs/k2"]
    assert python[-3:] == [
        "--config.rl.engines.start=0",
        "--config.rl.engines.listen=k2-main-0-0.k2:4567",
        "--config.rl.rollout.ray=auto",
    ]
    if heads:
        assert {"start", "--head", "--port=6379", "--num-cpus=0"} <= set(words_of(tmp_path / "ray"))
        assert command_of("workers")[:3] == ["ray", "start", "--address=k2-main-0-0.k2:6379"]


def test_xpk_has_a_workload_for_the_trainer_and_for_each_engine(tmp_path):
    spec = run(module="k2jax.rl", engines="v5p-128", engine_slices=2, environment=(("A", "1"),))
    each = "echo $1 >> $T/calls; printf '%s\\0' \"$@\" > $T/$1-$(wc -l < $T/calls)"
    done = bash(xpk_script(spec), fake_commands(tmp_path, xpk=each))
    assert done.returncode == 0, done.stderr
    trainer, *engines = [words_of(path) for path in sorted(tmp_path.glob("workload-*"))]
    assert "--workload=k2" in trainer and "--tpu-type=v5p-8x8x16" in trainer and "--env=A=1" in trainer
    assert trainer[-1].endswith("--config.rl.engines.listen=k2-slice-job-0-0.k2:4567")
    assert [words[2] for words in engines] == ["--workload=k2-engine-0", "--workload=k2-engine-1"]
    for words in engines:
        assert "--tpu-type=v5p-4x4x4" in words and "--num-slices=1" in words
        assert words[-1] == "--command=exec python -m k2jax.rollout engine --follow=/gcs/bucket/runs/k2"


@pytest.mark.parametrize(
    ("script", "changes", "message"),
    [
        (vm_script, {"engines": "v5p-8", "engine_slices": 1}, "--engines needs --backend=jobset or xpk"),
        (vm_script, {"workers": 1, "machine": "n2-standard-8"}, "--workers and --machine need --backend=jobset"),
        (vm_script, {"tpu": None, "machine": "n2-standard-8"}, "--workers and --machine need --backend=jobset"),
        (vm_script, {"secret": "keys"}, "--secret is a Kubernetes secret"),
        (xpk_script, {"workers": 1, "machine": "n2-standard-8"}, "--workers and --machine need --backend=jobset"),
        (xpk_script, {"secret": "keys"}, "--secret needs --backend=jobset"),
        (xpk_script, {"engines": "v5p-8", "engine_slices": 11, "name": "n" * 31}, "more than xpk's 40 characters"),
        (jobset, {"engines": "v5p-8"}, "--engines=TPU and --engine_slices=NUMBER, at least 1, belong together"),
        (jobset, {"engine_slices": 1}, "--engines=TPU and --engine_slices=NUMBER, at least 1, belong together"),
        (jobset, {"workers": 1}, "--machine is the type of machines without TPUs"),
        (jobset, {"machine": "n2-standard-8"}, "--machine is the type of machines without TPUs"),
        (jobset, {"workers": -1}, "--workers -1 is negative"),
        (jobset, {"workers": 1, "machine": "big"}, "--machine 'big' is not a machine type"),
        (jobset, {"secret": "my keys"}, "--secret 'my keys' is not the name of a Kubernetes secret"),
    ],
)
def test_what_a_backend_has_not_is_refused(script, changes, message):
    with refused(re.escape(message)):
        (jobset_script if script is jobset else script)(run(**changes))


def printed(monkeypatch, capsys, *words):
    """What the launch command prints, in this process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["launch", *words])  # config_flags looks there for overrides
    values, _ = cli.parse(sys.argv, launch.define, "")
    assert launch.main(values) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("case", golden.PARTS)
def test_launches_print_what_they_printed(monkeypatch, capsys, case):
    expected = (golden.FOLDER / f"{case}.sh").read_text()
    assert printed(monkeypatch, capsys, *golden.SAME, *golden.PARTS[case]) == expected


ENGINES = ["--engines=v5p-8", "--engine_slices=1"]
APART = [golden.RL, "--tpu=v5p-8", "--config.rl.engines.placement=separate"]
COLLECT = ["--module=k2jax.rollout", golden.RL, "--tpu=v5p-8"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--module=k2jax.rolout"], "--module 'k2jax.rolout' cannot be launched; did you mean 'k2jax.rollout'?"),
        (["--module=os"], "--module 'os' cannot be launched"),
        (["--module=k2jax.train", golden.RL, "--tpu=v5p-8"], "--module=k2jax.train does not train the stage rl"),
        ([golden.RL], "--tpu is required"),
        (["--module=k2jax.env.demonstrate"], "--tpu is required"),
        ([golden.RL, "--tpu=v5p-8", "--arguments=--x=1"], "k2jax.rl takes --config and --workdir alone"),
        ([*COLLECT, "--arguments=--task=3"], "unknown flag --task; did you mean 'tasks'?"),
        ([*COLLECT, "--arguments=--tasks=x"], "tasks"),
        ([*COLLECT, "--arguments='"], "cannot be read as a shell would: No closing quotation"),
        (
            [*COLLECT, "--arguments=--workdir=/tmp"],
            "--arguments has --workdir=/tmp; --config and --workdir are flags of",
        ),
        ([*COLLECT, "--arguments=--config.train.seed=3"], "--arguments has --config.train.seed=3"),
        ([*COLLECT[:2], "--tpu=v5p-16"], "k2jax.rollout is one process, and --tpu has 2 hosts"),
        ([*COLLECT, "--engines=v5p-8", "--engine_slices=1"], "and k2jax.rollout has its own"),
        ([*COLLECT, "--workers=2", "--machine=n2-standard-8"], "only k2jax.rollout with --ray=auto uses them"),
        (["--module=k2jax.env.check", golden.RL, "--tpu=v5p-8"], "k2jax.env.check takes no --config; omit it"),
        (["--module=k2jax.env.check", "--tpu=v5p-8"], "dataset is missing"),
        (
            [golden.TRAINING, "--tpu=v5p-8", "--workers=2"],
            "--workers=2 needs stage rl with config.rl.rollout.sampler=workers",
        ),
        ([golden.RL, "--tpu=v5p-8", "--workers=3"], "config.rl.rollout.workers=3 or more"),
        ([golden.TRAINING, "--tpu=v5p-8", *ENGINES], "--engines are of stage rl"),
        ([golden.RL, "--tpu=v5p-8", *ENGINES], "--engines are of stage rl with config.rl.engines.placement=separate"),
        ([*APART, "--config.rl.engines.listen=a:1", *ENGINES], "leave config.rl.engines.listen empty"),
        (
            [*APART, "--engines=v5p-128", "--engine_slices=4"],
            "--engines=v5p:4x4x4 has 64 devices, and an engine of config.rl.rollout.data 1 x expert 1 has 1",
        ),
        ([*APART, "--config.rl.rollout.data=8", *ENGINES], "--engines=v5p:2x2x1 has 4 devices, and an engine of"),
    ],
)
def test_mistakes_are_named_before_anything_starts(monkeypatch, capsys, words, message):
    with refused(re.escape(message)):
        printed(monkeypatch, capsys, *golden.SAME, *golden.GKE, *words)


def test_a_slice_of_an_engine_is_named_by_its_flag():
    with refused(re.escape("no TPU generation 'v5q' in --engines 'v5q-8'; did you mean 'v5p'?")):
        parse_slice("v5q-8", "--engines")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", [name for name in modules.MODULES if name not in modules.TRAINING])
def test_the_table_of_commands_is_what_they_say_themselves(name):
    """Their modules are run with a ``cli.run`` that only notes what it is given."""
    with mock.patch.object(cli, "run") as run_, mock.patch.object(sys, "argv", [name]):
        runpy.run_module(name, run_name="__main__", alter_sys=False)
    (call,) = run_.call_args_list
    arguments = dict(zip(("main", "define", "doc", "positional", "optional"), call.args, strict=False)) | call.kwargs
    known = modules.MODULES[name]
    assert (known.positional, known.optional) == (tuple(arguments.get("positional", ())), arguments.get("optional", 0))
    ours, theirs = flags.FlagValues(), flags.FlagValues()
    importlib.import_module(known.definition).define(ours)
    arguments["define"](theirs)
    assert list(ours) == list(theirs)


def test_trainers_are_commands():
    for name in modules.TRAINING:
        assert (ROOT / name.replace(".", "/") / "__main__.py").is_file()
