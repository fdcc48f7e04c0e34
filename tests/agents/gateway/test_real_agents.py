"""Real agents mend a repository in a sandbox, behind the gateway, with ids that the engine scores.

``K2JAX_AGENTS=agents pytest -m external tests/agents/gateway/test_real_agents.py``, where ``agents`` holds what
docs/agents.md installs, and ``agents/older`` another version of Claude Code. An agent that is not there is skipped with
the line that installs it.
"""

import asyncio

import pytest

from k2jax.agents.gateway.agent_entries import AGENTS
from k2jax.agents.gateway.agents import installed_version
from k2jax.config import replace_keys
from k2jax.errors import UserError
from k2jax.inference import Worker
from k2jax.inference.client import ForcedClient
from k2jax.trajectory import verify
from tests.agents.gateway.forced_agents import FOLDER, mend
from tests.agents.gateway.forward_pass import VERSION, check_logprobs
from tests.agents.gateway.record import run_agent
from tests.agents.gateway.scripted import TOKENIZER
from tests.inference.tiny import GQA, engine

# Few heads: most of the time goes to the scores of prompts of up to 40,000 tokens.
MODEL = replace_keys(GQA, {"vocab": TOKENIZER.vocab_size, "heads": 2, "gqa.kv_heads": 1})
LONGEST = 45056  # tokens of a sequence
pytestmark = [pytest.mark.external, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def worker():
    """One engine for all agents; its longest sequence is that of the longest prompt."""
    running = Worker(engine(MODEL, version=VERSION, max_length=LONGEST, slots=1))
    yield running
    running.stop()


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_a_real_agent_mends_a_repository_and_its_record_is_the_engines(worker, name):
    check_agent(worker, AGENTS[name], FOLDER)


def test_an_older_claude_code_mends_a_repository_with_the_same_settings(worker):
    folder, agent = f"{FOLDER}/older", AGENTS["claude_code"]
    version = installed_version(agent.packages[0], folder) or "2.1.319"
    assert version != agent.version
    check_agent(worker, agent.pinned_to(version), folder)


def check_agent(worker, agent, folder):
    try:
        agent.check_installed(folder)
    except UserError as error:
        pytest.skip(str(error))
    client = ForcedClient(worker, mend)
    trajectory, reward, _ = asyncio.run(run_agent(agent.name, client, folder, agent.version, seconds=600))
    assert trajectory.status == "finished" and reward == 1.0, (trajectory.error, trajectory.metadata)
    assert verify(trajectory, MODEL.vocab) == []
    checked = check_logprobs(MODEL, trajectory, 0.7)
    assert checked >= trajectory.sampled_tokens > 100
    print(agent.name, agent.version, trajectory.metadata["counts"], checked, "log-probabilities of one forward pass")
