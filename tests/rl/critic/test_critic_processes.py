"""Of several processes the first alone asks an endpoint, and all have its verdicts, whenever a sample has ended."""

import asyncio

import pytest

from k2jax import processes
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.task import Task
from k2jax.client import ScriptedClient
from k2jax.config import resolve
from k2jax.config import task as class_of_tasks
from k2jax.rl.episodes import Episodes
from k2jax.rl.groups import PromptGroup, reward_terms
from k2jax.rl.methods.base import Methods
from k2jax.rl.methods.critic import Critic
from k2jax.trajectory import Reward
from tests.agents.tool_episodes import COMPACT
from tests.rl.critic.judging import TOKENIZER, critic, scripted
from tests.rl.test_sub_episodes import Gathering
from tests.rl.tiny import tiny_config

CAP, STEPS = 3, 4


class LengthScorer:
    """A scorer that rewards the length of an answer."""

    async def judge(self, task, trajectory):
        trajectory.reward = Reward(float(len(trajectory.answer)))


def judged_config(verifier_weight):
    config = tiny_config()
    config.rl.tasks.open = class_of_tasks(
        dataset="low_bytes", max_tokens=20, verifier_weight=verifier_weight, judge_weight=1.0
    )
    config.rl.critic.update({"judge": "endpoint", "url": "http://x", "model": "m", "format": "compact", "share": 0.0})
    config.rl.rollout.update({"prompts": 2, "samples": 3, "token_cap": CAP})
    return resolve(config)


def asking(config):
    """A critic whose endpoint prefers the longer answer."""
    made = Critic(config, ())
    made.judge_with(critic(scripted(lambda one, two: "A" if len(one) > len(two) else "B"))._judge, asyncio.gather)
    return made


def iterations(config):
    """What a process trains on, by the key of the group: rewards, and how many samples had ended after iterations."""

    def reply(prompt, sampling):
        return [*TOKENIZER.encode("x" * (1 + sampling.seed % 11)), TOKENIZER.eos]

    episodes = Episodes(config, Gathering(ScriptedClient(reply)), COMPACT, TOKENIZER, LengthScorer())
    methods, trained, ended = Methods([asking(config)]), {}, {}
    task = Task("q", "open", ({"role": "user", "content": "why?"},), "any")
    groups = [PromptGroup(place, (1, place), DrawnTask("open", task), [None] * 3) for place in range(2)]
    weights = {"verifier": 1.0, "judge": 1.0, "overlong": 0.0}

    async def judge(complete):
        await methods.rewards(step, complete, scope="iteration")

    for step in range(1, STEPS + 1):
        asyncio.run(episodes.run(step, groups, token_cap=CAP, judge=judge))
        for group in groups:
            ended.setdefault(group.key, set()).add(sum(each.status != "unfinished" for each in group.trajectories))
        for group in [group for group in groups if group.complete]:
            terms = reward_terms(group, config.rl.tasks["open"], weights)
            trained[group.key] = [(term.name, term.values_K.tolist()) for term in terms], ended[group.key] - {0}
        groups = [group for group in groups if not group.complete]
    return trained


@pytest.mark.parametrize("verifier_weight", [0.0, 1.0])
def test_every_process_has_the_verdicts_of_samples_that_ended_an_iteration_earlier(verifier_weight, monkeypatch):
    config, said, trained = judged_config(verifier_weight), {}, []
    monkeypatch.setattr(processes, "count", lambda: 2)
    for index in range(2):
        read = set()

        def broadcast(name, text, index=index, read=read):
            assert name not in read, "each name is used once"
            read.add(name)
            return said.setdefault(name, text) if index == 0 else said[name]

        monkeypatch.setattr(processes, "is_first", lambda index=index: index == 0)
        monkeypatch.setattr(processes, "broadcast_from_first", broadcast)
        trained.append(iterations(config))
    assert trained[0] == trained[1] and len(trained[0]) == 2
    assert all(len(ended) > 1 for _, ended in trained[0].values()), "samples of a group end in several iterations"
