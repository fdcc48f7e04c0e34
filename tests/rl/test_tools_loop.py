"""Reinforcement learning in conversations of several turns: the shipped experiments, with a model that writes calls."""

import pytest

from k2jax.agents.mixture import TaskMixture
from k2jax.config import load_experiment, resolve
from k2jax.errors import UserError
from k2jax.rl.loop import train
from k2jax.tasks.commands.dataset import command_demonstrations
from k2jax.tasks.expressions.dataset import expression_demonstrations
from k2jax.tasks.tool_use.demonstrations import tool_demonstrations
from k2jax.text import ChatBuilder, byte_tokenizer, configured_chat
from k2jax.text.hermes_chat import HERMES_TOKENS
from k2jax.trajectory import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.emulated import ROOT
from tests.rl.tiny import tiny_config

TEACHERS = {"tools": tool_demonstrations, "code": expression_demonstrations, "terminal": command_demonstrations}
OPTIONS = {"tools": ("kinds=calc1", "count=8"), "code": ("count=8",), "terminal": ("count=8",)}


def experiment(name="tools"):
    return load_experiment(ROOT / f"experiments/rl/{name}_nano.py").get_config()


def small(name="tools"):
    """The experiment's tasks with a model for tests, which has not been trained."""
    shipped, config = experiment(name), tiny_config()
    config.rl.tasks = shipped.rl.tasks
    config.rl.tasks[name].options = OPTIONS[name]
    config.rl.tasks[name].update({"max_tokens": 8, "steps": 3})
    config.rl.rollout.update({"prompts": 2, "samples": 2, "slots": 4, "max_length": 96})
    config.rl.rollout.sandbox = shipped.rl.rollout.sandbox
    config.data.update({"chat_format": shipped.data.chat_format, "sequence_length": 96})
    config.rl.update({"updates": 1, "eval_prompts": 0})
    config.train.update({"steps": 1, "batch_size": 2})
    return config


@pytest.mark.parametrize("name", TEACHERS)
def test_the_experiments_tasks_are_wired_and_their_demonstrations_fit_its_rows(name):
    editable = experiment(name)
    editable.rl.tasks[name].options = (*editable.rl.tasks[name].options[:-1], "count=200")
    config, tokenizer = resolve(editable), byte_tokenizer()
    chat, tasks = configured_chat(tokenizer, config.data.chat_format), TaskMixture(config.rl.tasks, 0)
    drawn, limits = [tasks.prompt(number).task for number in range(200)], config.rl.tasks[name]
    assert {task.budget.steps for task in drawn} == {limits.steps} and {bool(task.tools) for task in drawn} == {True}
    for record in TEACHERS[name](drawn, direct=0.0):
        builder = ChatBuilder(chat)
        for message in record["messages"]:
            builder.add(message)
        answers = [message for message in record["messages"] if message["role"] == "assistant"]
        assert len(builder.tokens) <= config.rl.rollout.max_length and len(answers) <= limits.steps
        assert all(len(chat.render(answer)) < limits.max_tokens for answer in answers)


def in_qwens_format(folder):
    """The experiment with the tools with a vocabulary that has tokens of calls."""
    config = small()
    byte_tokenizer(HERMES_TOKENS).save(folder / "tokenizer")
    config.model.vocab = 262
    config.data.tokenizer.update({"kind": "file", "path": str(folder / "tokenizer")})
    config.data.update({"chat_format": "auto", "sequence_length": 1200})
    config.rl.rollout.max_length = 1200
    return config


@pytest.mark.slow
def test_an_iteration_trains_on_conversations_whose_tools_are_declared_in_qwens_format(tmp_path):
    assert train(resolve(in_qwens_format(tmp_path)), tmp_path / "run") == 0
    trajectories = list(TrajectoryStore(tmp_path / "run/trajectories").read(1))
    text = byte_tokenizer(HERMES_TOKENS).decode(trajectories[0].nodes[0].tokens)
    assert len(trajectories) == 4 and '"name": "calc"' in text
    assert all(not verify(trajectory, 262) and trajectory.reward is not None for trajectory in trajectories)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["lockstep", "workers"])
def test_an_iteration_trains_on_constrained_calls_with_both_log_probabilities_recorded(sampler, tmp_path):
    """What ends a call is banned before one begins, which takes a little of the probability of every other token."""
    config = in_qwens_format(tmp_path)
    config.rl.tasks.tools.scaffold = "chat constrained=true"
    config.rl.rollout.sampler = sampler
    assert train(resolve(config), tmp_path / "run") == 0
    trajectories = list(TrajectoryStore(tmp_path / "run/trajectories").read(1))
    sampled = [node for trajectory in trajectories for node in trajectory.nodes if node.turn >= 0]
    assert len(trajectories) == 4 and len(sampled) >= 4 and any(node.mask.any() for node in sampled)
    for node in sampled:
        took = node.logprobs - node.free_logprobs
        assert (took > 0).all() and (took[node.mask] < 0.011).all() and (took[~node.mask] > 0.009).all()


def test_a_wrong_toolset_stops_a_run_before_it_begins(tmp_path):
    config = small()
    config.rl.tasks.tools.tools = ("calculater",)
    with pytest.raises(UserError, match="did you mean 'calculator'"):
        train(resolve(config), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", TEACHERS)
def test_an_iteration_of_the_experiment_trains_on_conversations_with_tools(name, tmp_path):
    assert train(resolve(small(name)), tmp_path / "run") == 0
    trajectories = list(TrajectoryStore(tmp_path / "run/trajectories").read(1))
    assert len(trajectories) == 4
    for trajectory in trajectories:
        assert not verify(trajectory, 258) and trajectory.reward is not None
        assert trajectory.nodes[0].message["role"] == "user"
