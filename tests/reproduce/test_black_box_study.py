"""The study of learning through an agent: its runs fit together, and the agent shows what the teacher wrote."""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import Services
from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.agents import read_agent
from k2jax.client import Sampling, ScriptedClient
from k2jax.errors import UserError
from k2jax.reproduce import RunResult
from k2jax.reproduce.study import run_configs
from k2jax.reproduce.study_file import load_study_file
from k2jax.tasks.file_answers.dataset import EXPECTED, texts_left
from k2jax.tasks.file_answers.teacher import file_demonstrations
from k2jax.text import byte_tokenizer, configured_chat
from k2jax.text.chat import ChatBuilder
from tests.agents.gateway.forced_agents import FOLDER
from tests.agents.sandbox.backends import backend

study = load_study_file("black_box")
BYTES = byte_tokenizer()
COMPACT = configured_chat(BYTES, "compact")


def test_every_run_learns_from_the_demonstrations_of_the_study_and_starts_from_a_run_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "DEMONSTRATIONS", 40)
    study.prepare(tmp_path)
    before = set()
    for run, config in run_configs(study.STUDY, tmp_path).items():
        assert (config.init_from in before) == (run.partition("_")[2] != "sft"), run
        records = [json.loads(line) for line in Path(config.data.sources["imperfect"].path).read_text().splitlines()]
        assert len(records) == 40
        before.add(str(tmp_path / run))


def test_the_agents_templates_are_short_and_its_program_compiles():
    agent = read_agent(str(study.AGENT))
    values = dict.fromkeys(("task", "base", "key", "model", "home", "work", "agents"), "x")
    files = agent.filled(values).files
    templates = [line for line in files["x/agent.yaml"].splitlines() if "template" in line]
    assert len(templates) == 4 and len("".join(templates)) < 200  # characters, which are the model's tokens
    compile(files["x/gateway_model.py"], "gateway_model.py", "exec")


@pytest.mark.external
def test_the_agent_shows_the_model_the_tokens_of_the_teachers_conversations():
    """Where mini-swe-agent is installed; the teacher's commands through it also leave the files that are expected."""
    try:
        read_agent(str(study.AGENT)).check_installed(FOLDER)
    except UserError as error:
        pytest.skip(str(error))
    tasks = load_tasks("file_answers", ("kinds=write+copy+join+follow", "count=4", "syllables=2"))
    for task, made in zip(tasks, file_demonstrations(tasks, careless=0.0), strict=True):
        trajectory = asyncio.run(episode(task, [m["content"] for m in made["messages"] if m["role"] == "assistant"]))
        assert (
            trajectory.status == "finished"
            and texts_left(trajectory).items()
            >= {name: f"{text}\n" for name, text in task.metadata[EXPECTED].items()}.items()
        )
        [leaf] = trajectory.leaves()
        assert trajectory.path_tokens(leaf).tolist() == tokens_of(made["messages"])


async def episode(task, commands):
    said = iter(commands)
    client = ScriptedClient(lambda prompt, sampling: [*BYTES.encode(next(said)), COMPACT.end])
    task = dataclasses.replace(task, scaffold=f"black_box agent={study.AGENT} folder={FOLDER} seconds=60")
    environment = FilesEnvironment(Services(lambda: backend("bubblewrap")))
    sampling = Sampling(max_tokens=64)
    return await run_episode(
        task, client, COMPACT, BYTES, environment, key=EpisodeKey("train", 0, 0, 0), seed=1, sampling=sampling
    )


def tokens_of(messages):
    builder = ChatBuilder(COMPACT, ())
    for message in messages:
        if message["role"] == "assistant":
            builder.open_assistant()
            builder.append_sampled([*BYTES.encode(message["content"]), COMPACT.end])
        else:
            builder.add(message)
    return builder.tokens


def test_the_gain_is_taken_seed_by_seed():
    """Starts of 0.2, 0.3 and 0.4 gain 40, 41 and 42 points by rewards; more fine-tuning gains nothing."""
    made = {}
    for run, config in run_configs(study.STUDY, "runs").items():
        share = 0.2 + 0.1 * config.train.seed + (0.4 + 0.01 * config.train.seed) * ("_rl" in run)
        keys = ["eval/greedy", study.SAMPLED, "calls", "eval/length"]
        kinds = [f"{key}/{kind}" for key in keys[:2] for kind in study.KINDS]
        curves = [{"step": step, "seconds": 60.0 * step, "accuracy": 0.5} for step in (1, 2)]
        made[run] = RunResult(config, curves, 0, dict.fromkeys(keys + kinds, share))
    text = study.summarize(made).markdown
    assert "adds +41.0 (+40.0 to +42.0) points of greedy success" in text
    assert "a start that solves 0.300 (0.200 to 0.400) greedily" in text
    row = next(line for line in text.splitlines() if line.startswith("| as much more SFT"))
    assert row.count("+0.0 (+0.0 to +0.0)") == 2
    assert "took 4.0 (4.0 to 4.0) minutes" in text
    assert "in lockstep 120, 120, 120 s, without waiting 120, 120, 120 s" in text
    assert next(line for line in text.splitlines() if line.startswith("| RL, no waiting")).count("+41.0") == 2
