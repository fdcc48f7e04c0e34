"""The command: what it prints, runs and refuses, and which words of its command line are the trainer's."""

import ast
import os
import shlex
import subprocess
import sys

import pytest

from k2jax import cli
from k2jax.pods import launch
from k2jax.pods.launch_spec import XLA_OPTIONS, job_name
from tests.pods import golden
from tests.pods.runs import fake_commands

ROOT = golden.FOLDER.parents[2]
NANO = "--config=experiments/pretrain/nano.py"


@pytest.mark.parametrize("case", golden.CASES)
def test_dry_run_prints_what_it_printed(case):
    done = golden.launch(golden.TRAINING, *golden.SAME, *golden.CASES[case])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (golden.FOLDER / f"{case}.sh").read_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--zone="], "--zone is empty"),
        (["--project="], "--project is empty"),
        (["--tpu=v5q-8"], "no TPU generation 'v5q' in --tpu 'v5q-8'; did you mean 'v5p'?"),
        (["--workdir=/tmp/k2"], "--workdir /tmp/k2 is local, and a host's disk is deleted with the host"),
        (["--workdir=gs://bucket"], "--workdir 'gs://bucket' is not a folder in a bucket"),
        (["--workdir=s3://bucket/k2"], "is not a folder in a bucket, gs://BUCKET/FOLDER"),
        (["--workdir=gs://bucket/a/../b"], "has a wildcard or a part that is empty"),
        (["--workdir=gs://bucket/a*"], "has a wildcard or a part that is empty"),
        (["--config=experiments/pretrain/nanno.py"], "no config file 'experiments/pretrain/nanno.py'"),
        ([f"--config={os.path.abspath('experiments/pretrain/nano.py')}"], "must be relative to the repository"),
        (["--config=experiments/../experiments/pretrain/nano.py"], "must be relative to the repository"),
        (["--config.train.stepz=3"], "unknown key config.train.stepz; did you mean 'train.steps'?"),
        (["--config.train.batch_size=0"], "batch_size"),
        (
            ["--config=experiments/pretrain/k2_1t.py", "--backend=jobset", "--cluster=c", "--tpu=tpu7x:2x2x1"],
            "config.parallel.data (what is left) x expert 16 x stage 16 needs 256 devices, there are 8",
        ),
        (["--tpu=v5p-256"], "does not fill 32 micro-batches of 128 rows"),
        (["--tpu=v5p-128", "--config.parallel.stage=8"], "26 moe layers do not make equal chunks"),
        (["--slices=6"], "data 3 does not divide over 6 slices, between which no other axis may go"),
        (["--backend=jobset"], "--cluster is required to run on GKE"),
        (["--backend=xpk", "--cluster=c", "--slices=2", "--tpu=v6e-4"], "GKE connects only slices of several hosts"),
        (["--backend=jobset", "--cluster=c", "--capacity=reserved"], "needs --reservation=NAME on GKE"),
        (["--reservation=mine"], "--reservation mine needs --capacity=reserved, not on_demand"),
        (["--backend=slurm"], "slurm"),
        (["--slices=0"], "--slices and --grace_seconds must be at least 1"),
        (["--name=My_Run"], "--name 'My_Run' is not a valid job name"),
        ([f"--name={'a' * 41}"], "is not a valid job name; use up to 40"),
        ([b"--env=A=\xff"], "is not UTF-8"),
        (["--env=A"], "--env 'A' does not have the form NAME=VALUE"),
        (["--tpus=v5p-8"], "unknown flag --tpus; did you mean 'tpu'?"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(changed, message):
    done = golden.launch(golden.TRAINING, *golden.SAME, "--tpu=v5p-8", "--zone=z", *changed)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr and len(done.stderr.splitlines()) == 1 and not done.stdout


def test_the_printed_script_is_what_runs(tmp_path):
    """With commands that pretend: the script is run once, its exit code is the command's."""
    calls = 'echo "${0##*/} $1" >> $T/calls; '
    environment = fake_commands(tmp_path, gcloud=calls, kubectl=calls + "cat > $T/manifest; exit 7")
    environment["PYTHONPATH"] = os.getcwd()
    case = [flag for flag in (golden.TRAINING, *golden.SAME, *golden.CASES["jobset_v5p"]) if flag != "--dry_run"]
    command = [sys.executable, "-m", "k2jax.launch", *case]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == ["gcloud container", "kubectl create"]
    printed = (golden.FOLDER / "jobset_v5p.sh").read_text()
    assert done.stdout == printed and (tmp_path / "manifest").read_text() in printed
    (tmp_path / "bin/kubectl").unlink()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "kubectl is not installed; --backend=jobset needs gcloud, kubectl" in done.stderr
    assert len((tmp_path / "calls").read_text().splitlines()) == 2  # nothing was run


CACHE = "--config.data.cache_dir"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([NANO, "--tpu=v5p-8", "--dry_run"], [NANO]),
        (["--config", NANO[9:], "--tpu", "v5p-8", "--nodry_run"], ["--config", NANO[9:]]),
        ([NANO, CACHE, "workdir", "-workdir", "x"], [NANO, CACHE, "workdir"]),
        ([NANO, f"{CACHE}=--tpu=a b", "--env=A=1", "--env", "B=2"], [NANO, f"{CACHE}=--tpu=a b"]),
    ],
)
def test_the_trainers_words_are_kept_as_typed(monkeypatch, words, kept):
    monkeypatch.setattr(sys, "argv", ["launch", *words])  # config_flags looks there for overrides
    values, _ = cli.parse(sys.argv, launch.define, "")
    assert launch.config_arguments(words, values) == tuple(kept)


@pytest.mark.parametrize(
    ("workdir", "name"),
    [
        ("gs://b/runs/My Run_2", "my-run-2"),
        ("gs://b/runs/2026", "run-2026"),
        ("gs://b/x/", "x"),
        ("gs://b/" + "a" * 39 + "-b", "a" * 39),
        ("gs://b/é", "run"),
    ],
)
def test_the_name_comes_from_the_workdir(workdir, name):
    assert job_name(workdir) == name


def test_the_documented_commands_are_accepted(monkeypatch, capsys):
    pages = ("launch", "laptop_to_pod")
    text = "".join((ROOT / f"docs/{page}.md").read_text() for page in pages).replace("\\\n", " ")
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("python -m k2jax.launch")]
    assert len(commands) == 7
    monkeypatch.chdir(ROOT)
    for command in commands:
        monkeypatch.setattr(sys, "argv", [*command[2:], "--dry_run"])  # config_flags looks there for overrides
        values, _ = cli.parse(sys.argv, launch.define, "")
        assert launch.main(values) == 0
        assert capsys.readouterr().out.startswith("set -euo pipefail\n")


def launch_lines():
    """The launch commands in the docstrings of experiments, word by word."""
    for path in sorted(ROOT.glob("experiments/*/*.py")):
        for line in (ast.get_docstring(ast.parse(path.read_text())) or "").replace("\\\n", " ").splitlines():
            if line.strip().startswith("python -m k2jax.launch"):
                yield pytest.param(shlex.split(line)[2:], id=path.stem)


LINES = list(launch_lines())


def test_experiments_name_their_launch():
    assert len(LINES) >= 4


@pytest.mark.parametrize("command", LINES)
def test_the_launch_lines_of_experiments_are_accepted(monkeypatch, capsys, command):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", command)
    values, _ = cli.parse(sys.argv, launch.define, "")
    assert values.dry_run and launch.main(values) == 0
    assert capsys.readouterr().out.startswith("set -euo pipefail\n")


def test_xla_knows_the_options_and_they_make_the_exchange_asynchronous():
    """The TPU compiler stops at an option that it does not know."""
    program = """
import os, sys
from k2jax.aot import topology
topology.prepare()
os.environ["LIBTPU_INIT_ARGS"] = sys.argv[1]
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(topology.devices("v5p:2x2x1")), ("expert",))
exchange = lambda x, w: (jax.lax.all_to_all(x, "expert", 0, 0, tiled=True), w @ w)
specs = (P("expert"), P())
step = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False))
struct = lambda shape, spec: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
compiled = step.lower(struct((4096, 512), specs[0]), struct((1024, 1024), specs[1])).compile()
print(compiled.as_text().count("all-to-all-start"))
"""
    command = [sys.executable, "-c", program, " ".join(XLA_OPTIONS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 1
