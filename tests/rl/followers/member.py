"""``python -m tests.rl.followers.member WORKDIR OVERRIDES [HOW [STEP]]``: one process of a run with noisy episodes.

Each process writes the hashes of all rows that it trains on to ``rows-INDEX.json``. The last of several processes may
come apart in a step (HOW is ``differ``), kill or stop itself while it replays one (``kill``, ``halt``), or each trains
on what the workdir HOW has stored (a path).
"""

import json
import os
from pathlib import Path
import signal
import sys
import threading

from k2jax import processes
from k2jax.rl import lockstep, updates
from k2jax.rl.followers import follower
from k2jax.rl.followers.digests import digest_of_rows
from k2jax.rl.groups import class_of, reward_terms
from k2jax.rl.loop import train
from k2jax.rl.schedules import reward_weights
from k2jax.trajectory.store import TrajectoryStore
from tests.emulated import dispatch_at_once
from tests.rl.followers.noisy import noisy
from tests.rl.tiny import tiny


def note_rows(seen):
    """Notes the hash of the rows of every update, and the threads on which updates and engines run."""
    update = updates.Trainer.update

    def noting(self, number, rows):
        seen.append([number, digest_of_rows(rows).hex(), threading.current_thread().name])
        return update(self, number, rows)

    updates.Trainer.update = noting


def train_on(recorded):
    """Makes the sampler in lockstep hand on recorded trajectories in place of its own."""
    collect = lockstep.LockstepSampler.collect

    def replaced(self, step):
        groups = collect(self, step)
        known = {each.key: each for each in TrajectoryStore(recorded / "trajectories").read(step)}
        for group in groups:
            group.trajectories = [known.pop(each.key) for each in group.trajectories]
            of_class = class_of(self._config.rl, group)
            weights = reward_weights(of_class, step - 1, self._config.train.steps)
            group.terms = reward_terms(group, of_class, weights)
        assert not known
        return groups

    lockstep.LockstepSampler.collect = replaced


def misbehave(how, step, workdir):
    """Makes this process do something else once a step is done."""
    enqueue = follower.Follower._enqueue

    def other(self, engine, number, values, watched):
        if (workdir / "checkpoints" / str(step)).is_dir():
            if how == "differ":
                values = values | {"sampling": values["sampling"] | {"seed": 12345}}
            else:
                os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        enqueue(self, engine, number, values, watched)

    follower.Follower._enqueue = other


def _main() -> int:
    workdir, overrides, how = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    rows = []
    note_rows(rows)
    if how and how[0] in ("differ", "kill", "halt"):
        if processes.index() == processes.count() - 1:
            misbehave(how[0], int(how[1]), workdir)
    elif how:
        train_on(Path(how[0]))
    make = tiny if overrides.pop("quiet", False) else noisy
    code = train(make(**overrides), workdir)
    (workdir / f"rows-{processes.index()}.json").write_text(json.dumps(rows))
    return code


if __name__ == "__main__":
    dispatch_at_once()
    processes.start()
    sys.exit(processes.run_and_exit(_main))
