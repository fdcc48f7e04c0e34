"""Episodes of the loop start others: with random numbers of their own, verdicts, and their end in the record."""

import asyncio

import pytest

from k2jax.agents.collect.queue_file import Choices, WrittenTask
from k2jax.agents.environment import Step
from k2jax.agents.environments.single_turn import SingleTurn
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import spawned_seed, turn_seed
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.registry import environments
from k2jax.agents.roles import RoleClient
from k2jax.agents.spawning import Spawner
from k2jax.agents.task import Task
from k2jax.client import Client, Sampling, ScriptedClient
from k2jax.config import resolve
from k2jax.rl import episodes
from k2jax.rl.episodes import Episodes
from k2jax.rl.groups import PromptGroup
from k2jax.rl.loop import train
from k2jax.trajectory import Reward
from k2jax.trajectory.steps import SPAWNED
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.tool_episodes import BYTES, COMPACT, KEY, compact_client
from tests.rl.critic.lenient import STOPS
from tests.rl.tiny import register, tiny, tiny_config


class Gathering(Client):
    """A scripted client whose coroutines need no lockstep, and the most requests that were open at a time."""

    def __init__(self, client: ScriptedClient):
        self.client, self.open, self.most = client, 0, 0

    async def generate(self, prompt, sampling, **options):
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        return await self.client.generate(prompt, sampling, **options)

    async def gather(self, *coroutines):
        return list(await asyncio.gather(*coroutines))


class Judge:
    """A scorer that rewards the length of an answer."""

    async def judge(self, task, trajectory):
        trajectory.reward = Reward(float(len(trajectory.answer)))


class Asking(SingleTurn):
    """Asks two others at once about what the policy says, or about the rest of it, as long as there is more."""

    async def step(self, action):
        deeper = {"verifier": self._task.verifier, "depth": self._left - 1}
        tasks = [part(f"{name}{self._task.id}", action["content"], **deeper) for name in "ab"]
        if self._left:
            self.answers = await asyncio.gather(*(self.services.spawn(task) for task in tasks))
        return Step((await super().step(action)).observation, terminated=True)

    async def reset(self, task, seed):
        self._task, self._left = task, task.metadata.get("depth", 1)
        return await super().reset(task, seed)


def part(name, text, verifier="any", depth=0):
    messages = ({"role": "user", "content": text},)
    return Task(name, "letters", messages, verifier, environment="asking", metadata={"depth": depth})


@pytest.fixture(autouse=True)
def asking():
    environments.add("asking", "tests.rl.test_sub_episodes:Asking")


def test_sub_episodes_have_their_own_random_numbers_and_rewards_at_every_depth():
    scripted = compact_client(lambda text: f"{text.count('<')}{len(text)}")
    runner, asked = Episodes(resolve(tiny_config()), Gathering(scripted), COMPACT, BYTES, Judge()), []
    run = runner.sub_episodes(KEY, 7, lambda kind: asked.append(kind) or Sampling(max_tokens=9))
    shared = {"key": KEY, "seed": 7, "sampling": Sampling(max_tokens=9)}
    top, environment = part("t", "x", depth=2), Asking()
    episode = asyncio.run(
        run_episode(top, scripted, COMPACT, BYTES, environment, spawner=Spawner(run, "top"), **shared)
    )
    links = episode.metadata[SPAWNED]
    assert list(links) == ["0", "1"] and [link["task"] for link in links.values()] == ["at", "bt"]
    for link, other in zip(links.values(), environment.answers, strict=True):
        assert link["status"] == other.status == "finished" and link["tokens"] == other.sampled_tokens > 0
        assert link["reward"] == other.reward.value == len(other.answer)
        assert [each["task"] for each in other.metadata[SPAWNED].values()] == [f"a{other.task}", f"b{other.task}"]
    assert asked == ["top"] * 6
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    seeds = {turn_seed(spawned_seed(7, KEY, path), KEY, 0) for path in paths}
    assert len(seeds) == 7 == len(scripted.calls) and {sampling.seed for _, sampling in scripted.calls} == seeds


@pytest.mark.parametrize(("joint", "sub_experts"), [("off", False), ("role", True)])
def test_experts_are_recorded_in_sub_episodes_where_these_are_trained_on(joint, sub_experts):
    client = Gathering(compact_client(lambda text: "b"))
    config = tiny(**{"rl.rollout.routing": "record", "rl.parl.joint": joint})
    group = PromptGroup(0, (1, 0), DrawnTask("low", part("a", "a", depth=1)), [None])
    asyncio.run(Episodes(config, client, COMPACT, BYTES, Judge()).run(1, [group]))
    assert [sampling.return_experts for _, sampling in client.client.calls] == [True, sub_experts, sub_experts]
    choices = Choices("train", 1, 0, {"low": {"max_tokens": 4, "return_experts": True}}, True, sub_experts)
    written = WrittenTask("low", part("a", "a"), choices=choices)
    assert [each.sampling.return_experts for each in (written, written._replace(path=(0,)))] == [True, sub_experts]
    assert WrittenTask.read(written.line()) == written


def test_episodes_start_in_groups_of_the_concurrency_and_sample_the_same():
    prompts, calls = [DrawnTask("low", part(letter, letter)) for letter in "abcd"], {}
    for concurrency, most in ((0, 16), (6, 6)):
        client = Gathering(compact_client(lambda text: text))
        config = tiny(**{"rl.rollout.concurrency": concurrency})
        groups = [PromptGroup(place, (1, place), prompt, [None] * 4) for place, prompt in enumerate(prompts)]
        asyncio.run(Episodes(config, client, COMPACT, BYTES, Judge()).run(1, groups))
        assert client.most == most and all(each.reward for group in groups for each in group.trajectories)
        calls[concurrency] = sorted((list(prompt), sampling.seed) for prompt, sampling in client.client.calls)
    assert len(calls[0]) == 16 and calls[0] == calls[6]


@pytest.mark.slow
def test_the_loop_runs_sub_episodes_in_lockstep_and_the_same_ones_again(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "Sampling", STOPS)  # an untrained policy hardly ever ends a turn

    def config(token_cap=0):
        register()
        made = tiny_config()
        made.rl.tasks.low.update({"environment": "asking", "max_tokens": 6})
        made.rl.rollout.update({"prompts": 2, "samples": 2, "token_cap": token_cap})
        made.rl.update({"updates": 1, "eval_prompts": 0})
        made.train.update({"steps": 1, "batch_size": 2})
        return resolve(made)

    for name in ("one", "other"):
        assert train(config(), tmp_path / name) == 0
    stored = [TrajectoryStore(tmp_path / name / "trajectories").read(1) for name in ("one", "other")]
    ended = []
    for one, other in zip(*map(list, stored), strict=True):
        assert one.metadata == other.metadata and one.nodes[1].tokens.tolist() == other.nodes[1].tokens.tolist()
        finished = one.status == "finished"
        assert len(one.metadata.get(SPAWNED, ())) == (2 if finished else 0)
        assert all(link["reward"] is not None for link in one.metadata.get(SPAWNED, {}).values())
        ended.append(finished)
    assert any(ended)


@pytest.mark.parametrize("tool", ["delegate", "delegate role=helper"])
def test_an_episode_that_pauses_goes_on_with_the_sub_episodes_that_it_had(tool):
    scripted = compact_client(lambda text: "the end" if "six" in text else "!delegate 5" if "x" in text else "six")
    task = Task("t", "letters", ({"role": "user", "content": "x"},), "any", environment="tools", tools=(tool,))
    group, rounds, kept = PromptGroup(0, (1, 0), DrawnTask("low", task), [None]), 0, []
    roles = {"helper": RoleClient(scripted, COMPACT, BYTES)}
    while not group.complete and rounds < 4:
        episodes = Episodes(tiny(), Gathering(scripted), COMPACT, BYTES, Judge(), roles=roles)
        asyncio.run(episodes.run(1, [group], token_cap=15))
        rounds += 1
        kept.append(group.trajectories[0].spawned.get(0))
    assert rounds == 2 and kept[0] is kept[1] and kept[0].answer == "six"
    assert len(scripted.calls) == 4  # a delegation, its sub-agent, and an answer that was cut and went on
