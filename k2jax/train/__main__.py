"""Trains the experiment of a config file; run again, it resumes from its workdir by itself.

Example:
    python -m k2jax.train --config=experiments/pretrain/nano.py --workdir=runs/nano
    python -m k2jax.train --config=experiments/pretrain/nano.py --workdir=runs/short --config.train.steps=30

Several processes train together when each is started with JAX_COORDINATOR_ADDRESS=HOST:PORT of process 0,
JAX_NUM_PROCESSES and JAX_PROCESS_ID, the same command and a workdir that all see; on Cloud TPU and GKE they find each
other. All end with one exit code; SIGTERM to one saves and stops all.

Exit codes: 0 finished; 2 a mistake in the command, the config or the data; 3 stopped on a non-finite loss, gradient or
logit; 143 after SIGTERM and 130 after Ctrl-C (143 with several processes), with a checkpoint saved;
1 a bug, or a process that was lost.
"""

from k2jax.train.command import run_loop

if __name__ == "__main__":
    run_loop("k2jax.train", __doc__)
