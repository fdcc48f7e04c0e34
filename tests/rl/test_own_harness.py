"""The loop trains on rewards that a program with containers of its own hands back."""

import importlib.util
import sys

import pytest

from k2jax.agents.sandbox.bubblewrap import find_bubblewrap
from k2jax.config import resolve
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.trajectory import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.harness.programs import written
from tests.emulated import ROOT
from tests.rl.tiny import tiny_config

HARNESS = """
text = said(ask(QUESTION))
container = [BWRAP, "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
             "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc"]
counted = subprocess.run([*container, "sh", "-c", "wc -c; set -- /proc/[0-9]*; echo $#"], input=text.encode(),
                         capture_output=True, check=True).stdout.split()
with open(LOG, "a") as log:
    log.write(json.dumps([os.environ["K2JAX_EPISODE"], time.time()]) + "\\n")
info = {"bytes": int(counted[0]), "processes": int(counted[1])}
post("/close", {"reward": info["bytes"] % 3 / 2, "info": info}, key("K2JAX_REWARD_KEY_FILE"))
"""


def experiment():
    spec = importlib.util.spec_from_file_location("own_harness", ROOT / "experiments/rl/own_harness.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_experiment_s_program_is_there():
    module = experiment()
    [files] = resolve(module.get_config()).rl.tasks.values()
    assert module.HARNESS.exists() and str(module.HARNESS) in files.scaffold and files.verifier == "handed_back"


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "workers"), [("lockstep", 0), ("workers", 0), ("workers", 2)])
def test_three_iterations_train_on_rewards_that_two_programs_at_a_time_hand_back(tmp_path, sampler, workers):
    """The shipped experiment with the model of tests, and a program that counts bytes in a container of its own."""
    config = tiny_config()
    of = experiment().get_config().rl.tasks.files
    of.update({"options": ("kinds=write", "count=20"), "max_tokens": 12, "steps": 3})
    bwrap = "/".join(filter(None, reversed(find_bubblewrap())))
    program = written(tmp_path, f"LOG, BWRAP = {str(tmp_path / 'log')!r}, {bwrap!r}\n{HARNESS}")
    assert sys.executable in program
    of.scaffold = f"command {program} seconds=60 turns=all"
    config.rl.tasks = {"files": of}
    config.rl.rollout.update({"prompts": 2, "samples": 2, "slots": 4, "max_length": 200, "concurrency": 2})
    config.rl.rollout.update({"sampler": sampler, "workers": workers})
    config.data.update({"chat_format": "compact", "sequence_length": 200})
    config.rl.update({"updates": 1, "eval_prompts": 1, "eval_samples": 1})
    config.train.update({"steps": 3, "batch_size": 2})
    config.eval.every = 3
    assert train(resolve(config), tmp_path / "run") == 0
    store = TrajectoryStore(tmp_path / "run/trajectories")
    trajectories = [trajectory for step in (1, 2, 3) for trajectory in store.read(step)]
    assert len(trajectories) == 12
    for trajectory in trajectories:
        assert not verify(trajectory, 258) and trajectory.sampled_tokens, trajectory.error
        info = trajectory.reward.info
        said = len((trajectory.answer or "").encode(errors="replace"))
        assert info["bytes"] == said and trajectory.reward.value == said % 3 / 2 and info["processes"] == 2
    assert len({trajectory.reward.value for trajectory in trajectories}) > 1
    assert all("reward" in record for record in read_metrics(tmp_path / "run")[1:])
    assert len((tmp_path / "log").read_text().splitlines()) >= 12
