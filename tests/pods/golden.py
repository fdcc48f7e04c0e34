"""Command lines of the golden tests; ``python -m tests.pods.golden`` writes anew what they print."""

from pathlib import Path
import subprocess

from tests.command import run_command

FOLDER = Path(__file__).parent / "golden"
SAME = (
    "--config=experiments/pretrain/moonlight_16b.py",
    "--workdir=gs://my-bucket/runs/k2",
    "--project=my-project",
    "--image=us-docker.pkg.dev/my-project/k2jax/train:1",
    "--dry_run",
)
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
    for case, case_flags in CASES.items():
        done = launch(*SAME, *case_flags)
        done.check_returncode()
        (FOLDER / f"{case}.sh").write_text(done.stdout)
