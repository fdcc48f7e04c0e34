"""Real agents mend a repository in a sandbox, behind the gateway, with ids that the engine scores.

``K2JAX_AGENTS=agents pytest -m external tests/gateway/test_real_agents.py``, where ``agents`` holds what docs/agents.md
installs. An agent that is not there is skipped with the line that installs it.
"""

import asyncio

import numpy as np
import pytest

from k2jax.config import replace_keys
from k2jax.errors import UserError
from k2jax.gateway.agent_entries import AGENTS
from k2jax.inference import Worker
from k2jax.inference.client import ForcedClient
from k2jax.trajectory import verify
from tests.gateway.forced_agents import FOLDER, mend
from tests.gateway.record import run_agent
from tests.gateway.scripted import TOKENIZER
from tests.inference.tiny import GQA, engine, oracle

MODEL = replace_keys(GQA, {"vocab": TOKENIZER.vocab_size})
LONGEST_CHECKED = 4096  # tokens of a path that one dense forward pass is affordable for
pytestmark = [pytest.mark.external, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def worker():
    """One engine for all agents; its longest sequence is that of the longest prompt."""
    running = Worker(engine(MODEL, version=3, max_length=65536, slots=1))
    yield running
    running.stop()


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_a_real_agent_mends_a_repository_and_its_record_is_the_engines(worker, name):
    try:
        AGENTS[name].check_installed(FOLDER)
    except UserError as error:
        pytest.skip(str(error))
    trajectory, reward, _ = asyncio.run(run_agent(name, ForcedClient(worker, mend), seconds=600))
    assert trajectory.status == "finished" and reward == 1.0, (trajectory.error, trajectory.metadata)
    assert verify(trajectory, MODEL.vocab) == []
    checked = 0
    for leaf in trajectory.leaves():
        nodes = [trajectory.nodes[index] for index in trajectory.path(leaf)]
        assert all(set(node.versions.tolist()) == {3} for node in nodes if node.turn >= 0)
        path_T = trajectory.path_tokens(leaf)
        if len(path_T) > LONGEST_CHECKED:
            continue
        expected_TV = oracle(MODEL, path_T.tolist(), 0.7)
        expected_T = np.concatenate([[0.0], expected_TV[np.arange(len(path_T) - 1), path_T[1:]]])
        logprobs_T = np.concatenate([node.logprobs for node in nodes])
        sampled_T = np.concatenate([np.full(len(node.tokens), node.turn >= 0) for node in nodes])
        np.testing.assert_allclose(logprobs_T[sampled_T], expected_T[sampled_T], atol=1e-4)
        checked += int(sampled_T.sum())
    print(name, trajectory.metadata["counts"], f"log-probabilities of {checked} tokens are those of one forward pass")
