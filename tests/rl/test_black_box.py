"""The loop trains on what a black-box agent's model sampled."""

import importlib.util

import pytest

from k2jax.agents.environment import OUTCOME
from k2jax.agents.gateway.agents import read_agent
from k2jax.config import resolve
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.trajectory import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.gateway.repository import small_agent, write_agent
from tests.emulated import ROOT
from tests.refusal import refused
from tests.rl.tiny import tiny_config


def experiment():
    spec = importlib.util.spec_from_file_location("black_box", ROOT / "experiments/rl/black_box.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_experiments_agent_is_well_formed_and_its_prompt_is_short():
    module = experiment()
    agent = read_agent(str(module.AGENT))
    values = dict.fromkeys(("task", "base", "key", "model", "home", "work", "agents"), "x")
    assert agent.filled(values).argv[0] == "python" and agent.turns == "all"
    config = resolve(module.get_config())
    [files] = config.rl.tasks.values()
    assert files.dataset == "file_answers" and str(module.AGENT) in files.scaffold
    templates = "".join(line for line in agent.files["${home}/agent.yaml"].splitlines() if "template" in line)
    assert len(templates) < 200 * 4  # characters of 200 tokens


def config_with_agent(folder, agent, **rollout):
    """The editable config of a run of two iterations with an agent."""
    agent = write_agent(folder / "agent.json", agent)
    config = tiny_config()
    of = experiment().get_config().rl.tasks.files
    of.update({"options": ("kinds=write", "count=20"), "max_tokens": 12, "steps": 3})
    of.scaffold = f"black_box agent={agent}"
    config.rl.tasks = {"files": of}
    config.rl.rollout.update({"prompts": 2, "samples": 2, "slots": 4, "max_length": 200, "concurrency": 6})
    config.rl.rollout.update(rollout)
    config.data.update({"chat_format": "compact", "sequence_length": 200})
    config.rl.update({"updates": 1, "eval_prompts": 1, "eval_samples": 1})
    config.train.update({"steps": 2, "batch_size": 2})
    config.eval.every = 1
    return config


def with_agent(folder, sandbox="bubblewrap", **rollout):
    """The config of a run of two iterations with an agent of a few lines."""
    return resolve(config_with_agent(folder, small_agent(), sandbox=sandbox, **rollout))


@pytest.mark.parametrize("sandbox", ["e2b", "kubernetes"])
def test_where_an_agent_s_budget_of_time_cannot_be_kept_it_is_refused_by_name_before_a_run_begins(tmp_path, sandbox):
    words = f"class 'files' has the scaffold 'black_box .*in {sandbox} its processor time .*config.rl.rollout.sandbox"
    with refused(words):
        train(with_agent(tmp_path, sandbox), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "workers"), [("lockstep", 0), ("workers", 0), ("workers", 1)])
def test_iterations_train_on_episodes_of_an_agent_and_evaluations_between_them_run_it(tmp_path, sampler, workers):
    """The shipped experiment with the model of tests and an agent of a few lines; some answers outlive an iteration."""
    assert train(with_agent(tmp_path, sampler=sampler, workers=workers), tmp_path / "run") == 0
    store = TrajectoryStore(tmp_path / "run/trajectories")
    trajectories = [trajectory for step in (1, 2) for trajectory in store.read(step)]
    assert sorted(each.key for each in trajectories) == [(i, j, k) for i in (1, 2) for j in (0, 1) for k in (0, 1)]
    for trajectory in trajectories:
        assert not verify(trajectory, 258) and trajectory.reward is not None, trajectory.error
        assert trajectory.sampled_tokens and "archive" in trajectory.metadata[OUTCOME]
        assert trajectory.metadata["agent"]["name"] == "small"
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in records] == [0, 1, 2] and all("eval/greedy" in record for record in records)
    assert ("pause_seconds" in records[-1]) == (sampler == "workers")
