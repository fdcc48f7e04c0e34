"""``python -m tests.rl.member WORKDIR OVERRIDES [RECORDED]``: a tiny run on all devices of its processes, for tests.

A sum that another mesh rounds in another way may change a sampled token, and everything after it. Where RECORDED names
the workdir of another run, each iteration therefore samples and scores by itself, but trains on RECORDED's trajectory
in place of every one whose tokens differ. ``replaced.json`` in the workdir counts those.
"""

import json
from pathlib import Path
import sys

import numpy as np

from k2jax import processes
from k2jax.rl.lockstep import LockstepPrompts
from k2jax.rl.loop import train
from k2jax.trajectory.store import TrajectoryStore
from tests.emulated import dispatch_at_once
from tests.rl.tiny import tiny


def follow(recorded: Path, replaced: list[int]) -> None:
    """Makes rollouts return a recorded trajectory where the tokens of their own are others; counts them by step."""
    collect = LockstepPrompts.collect

    async def collect_and_replace(self, step):
        groups = await collect(self, step)
        known = {trajectory.key: trajectory for trajectory in TrajectoryStore(recorded / "trajectories").read(step)}
        count = 0
        for group in groups:
            for sample, own in enumerate(group.trajectories):
                other = known.pop(own.key)
                if not np.array_equal(own.path_tokens(len(own.nodes) - 1), other.path_tokens(len(other.nodes) - 1)):
                    group.trajectories[sample], count = other, count + 1
        assert not known
        replaced.append(count)
        return groups

    LockstepPrompts.collect = collect_and_replace


def _main() -> int:
    workdir, overrides = Path(sys.argv[1]), json.loads(sys.argv[2])
    replaced: list[int] = []
    if sys.argv[3:]:
        follow(Path(sys.argv[3]), replaced)
    code = train(tiny(**overrides), workdir)
    if processes.is_first():
        (workdir / "replaced.json").write_text(json.dumps(replaced))
    return code


if __name__ == "__main__":
    dispatch_at_once()
    processes.start()
    sys.exit(processes.run_and_exit(_main))
