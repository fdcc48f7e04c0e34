"""Command lines of the golden tests; ``python -m tests.pods.golden`` writes anew what they print."""

from pathlib import Path
import subprocess

from tests.command import run_command

FOLDER = Path(__file__).parent / "golden"
TRAINING = "--config=experiments/pretrain/moonlight_16b.py"
SAME = (
    "--workdir=gs://my-bucket/runs/k2",
    "--project=my-project",
    "--image=us-docker.pkg.dev/my-project/k2jax/train:1",
    "--dry_run",
)
RL = "--config=experiments/rl/terminal_workers_nano.py"
GKE = ("--backend=jobset", "--zone=us-east5", "--cluster=my-cluster")
PARTS = {
    "jobset_workers": (
        *(RL, *GKE, "--tpu=v5p:2x2x1", "--workers=2", "--machine=n2-standard-32", "--config.rl.rollout.workers=48"),
        "--secret=my-keys",
    ),
    "jobset_engines": (
        *(RL, *GKE, "--tpu=v5p:2x2x1", "--engines=v6e-4", "--engine_slices=2", "--max_restarts=5"),
        "--config.rl.engines.placement=separate",
    ),
    "xpk_engines": (
        *(RL, "--backend=xpk", "--zone=us-east5", "--cluster=my-cluster", "--tpu=v5p:2x2x1", "--engines=v5p:2x2x1"),
        *("--engine_slices=2", "--config.rl.engines.placement=separate"),
    ),
    "jobset_engine_hosts": (
        *(RL, *GKE, "--tpu=v5p:2x2x1", "--engines=v5p:2x2x2", "--engine_slices=1"),
        *("--config.rl.engines.placement=separate", "--config.rl.rollout.data=8"),
    ),
    "xpk_engine_hosts": (
        *(RL, "--backend=xpk", "--zone=us-east5", "--cluster=my-cluster", "--tpu=v5p:2x2x1", "--engines=v5p:2x2x2"),
        *("--engine_slices=1", "--config.rl.engines.placement=separate", "--config.rl.rollout.data=8"),
    ),
    "jobset_collection": (
        *(RL, *GKE, "--machine=n2-standard-32", "--module=k2jax.rollout", "--service_account=collector"),
        "--arguments=--url=http://engine:8000 --model='it is' --tokenizer=/gcs/my-bucket/sft --tasks=20",
    ),
    "vm_evaluation": (
        *("--zone=us-east5-a", "--tpu=v5p-8", "--module=k2jax.evaluate.pictures"),
        "--arguments=--checkpoint=/gcs/my-bucket/runs/vision",
    ),
}
"""Launches of several parts, or of other commands than a training."""
CASES = {
    "vm_v5p_two_slices": (
        *("--tpu=v5p-2048", "--slices=2", "--zone=us-east5-a", "--capacity=spot", "--max_restarts=20"),
        *("--config.train.micro_batches=1", "--config.data.cache_dir=it's $HOME"),
    ),
    "jobset_v5p": (
        *("--backend=jobset", "--tpu=v5p:8x8x16", "--zone=us-east5", "--cluster=my-cluster"),
        *("--capacity=reserved", "--reservation=my-reservation", "--service_account=trainer"),
        *("--config.train.micro_batches=2", "--config.data.cache_dir=$(HOME)"),
    ),
    "xpk_v6e": (
        *("--backend=xpk", "--tpu=v6e-256", "--slices=4", "--zone=us-east5-b", "--cluster=my-cluster"),
        *("--config.train.micro_batches=2", "--config.data.cache_dir=it's $HOME", "--capacity=flex"),
        *("--env=LIBTPU_INIT_ARGS=", "--grace_seconds=300"),
    ),
}


def launch(*flags: str) -> subprocess.CompletedProcess:
    """``python -m k2jax.launch`` with these flags, in the repository, where no command of any cloud can be found."""
    return run_command("k2jax.launch", *flags, PATH="")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case, case_flags in {**{name: (TRAINING, *case) for name, case in CASES.items()}, **PARTS}.items():
        done = launch(*SAME, *case_flags)
        done.check_returncode()
        (FOLDER / f"{case}.sh").write_text(done.stdout)
