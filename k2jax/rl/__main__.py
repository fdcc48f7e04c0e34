"""Reinforcement learning of the experiment of a config file; run again, it resumes from its workdir by itself.

Example:
    python -m k2jax.rl --config=experiments/rl/nano.py --workdir=runs/rl --config.init_from=runs/sft

Several processes train together as with k2jax.train.

Exit codes: 0 finished; 2 a mistake in the command, the config or the tasks; 3 stopped on a non-finite loss, gradient or
logit; 143 after SIGTERM and 130 after Ctrl-C (143 with several processes), with a checkpoint saved;
1 a bug, or a process that was lost.
"""

from k2jax.train.command import run_loop

if __name__ == "__main__":
    run_loop("k2jax.rl", __doc__)
