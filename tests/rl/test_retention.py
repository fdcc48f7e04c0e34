"""Verdicts stay as long as some checkpoint leads to them."""

from hypothesis import given
from hypothesis import strategies as st

from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.verdicts import Verdict, VerdictLog
from k2jax.rl.retention import VerdictRetention
from k2jax.trajectory import Reward

STEPS = 12


def steps_of(log_folder):
    names = (path.stem.split("-") for path in log_folder.iterdir())
    return {({"step": "train"}.get(name, name), int(step)) for name, step in names}


@given(
    waits=st.lists(st.integers(0, 3), min_size=STEPS, max_size=STEPS),
    saved=st.sets(st.integers(1, STEPS)),
    restored=st.integers(0, 4),
)
def test_what_any_checkpoint_leads_to_is_kept_and_what_none_leads_to_is_gone(tmp_path_factory, waits, saved, restored):
    """Checkpoints in ``saved``; after step C groups wait that began up to ``waits[C - 1]`` steps before the next."""
    workdir = tmp_path_factory.mktemp("run")
    log = VerdictLog(workdir / "verdicts")
    every = {("budget", 0), *(("train", n) for n in range(1, STEPS + 1)), *(("eval", n) for n in range(STEPS + 1))}
    for purpose, step in every:
        log.append(EpisodeKey(purpose, step, 0, 0), Verdict("d", Reward(1.0)))
    began = [1]
    for step, wait in enumerate(waits, 1):  # a group that has left does not come back
        began.append(max(began[-1], step + 1 - wait))
    retention = VerdictRetention(log, workdir)
    for step in range(restored, STEPS + 1):
        retention.note(step, began[step])
    for step in saved:
        (workdir / "checkpoints" / str(step)).mkdir(parents=True)
    retention.tidy()
    wanted = every
    if saved and min(saved) >= restored:
        first, evaluated = min(began[step] for step in saved), min(saved) + 1
        wanted = {(name, n) for name, n in every if name != "budget" and n >= (first, evaluated)[name == "eval"]}
    assert steps_of(workdir / "verdicts") == wanted
