"""Tasks whose prompt leaves no room for an answer: named before anything is sampled, or left out and counted."""

import asyncio
from types import SimpleNamespace

import pytest

from k2jax.agents.mixture import DrawnTask
from k2jax.agents.registry import datasets
from k2jax.agents.scaffolds.prompt_lengths import PromptLengths
from k2jax.agents.task import Task
from k2jax.client import PromptTooLongError
from k2jax.rl import episodes
from k2jax.rl.groups import PromptGroup
from k2jax.text import byte_tokenizer
from k2jax.text.chat import ChatBuilder, configured_chat
from tests.refusal import refused
from tests.rl.tiny import tiny


class Lengths:
    """Prompts of so many letters, training ones and held-out ones."""

    def __init__(self, train: str = "2", test: str = "2", parts: bool = False, split: str = "train"):
        self._sizes, self._parts = [int(size) for size in (train if split == "train" else test).split("+")], parts

    def load(self):
        for number, size in enumerate(self._sizes):
            content = [{"type": "text", "text": size * "a"}] if self._parts else size * "a"
            yield Task(f"t{number}", "length", ({"role": "user", "content": content},), "share_of_low_bytes")


def lengths(policy, *options, **overrides):
    datasets.add("lengths", "tests.rl.test_prompt_lengths:Lengths")
    chosen = {"rl.tasks.low.dataset": "lengths", "rl.tasks.low.options": options, "rl.rollout.long_prompts": policy}
    config = tiny(**chosen, **overrides)
    return PromptLengths(config, configured_chat(byte_tokenizer(), "plain"))


def longest():
    """Letters of the longest prompt that leaves room for one token in a sequence of 80."""
    builder = ChatBuilder(configured_chat(byte_tokenizer(), "plain"))
    builder.add({"role": "user", "content": ""})
    builder.open_assistant()
    return 79 - len(builder.tokens)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("place", ["train", "test"])
def test_a_prompt_that_leaves_no_room_is_refused_at_the_start_with_its_class_its_task_and_the_key(place, parts):
    fits, more = longest(), longest() + 1
    lengths("refuse", f"{place}=2+{fits}", f"parts={parts}").open_mixture()
    words = "'t1' of class 'low' .*rl.rollout.max_length 80: it has 80 tokens.*long_prompts=skip"
    with refused(words):
        lengths("refuse", f"{place}=2+{more}", f"parts={parts}").open_mixture()
    lengths("refuse", f"test=2+{more}", **{"rl.eval_prompts": 1}).open_mixture()  # it would never be asked


def test_long_prompts_are_left_out_and_counted_where_the_config_says_so():
    more = longest() + 1
    mixture, words = lengths("skip", f"train=2+{more}+3+{2 * more}", f"test={more}+5").open_mixture()
    assert [drawn.task.id for drawn in mixture.training_prompts()] == ["t0", "t2"]
    assert [drawn.task.id for drawn in mixture.held_out(4)] == ["t1"]
    assert words.endswith("were left out: 3 of class 'low'")
    plain, silent = lengths("skip", "train=2+3").open_mixture()
    assert not silent and plain.fingerprint != mixture.fingerprint
    with refused("leaves none of 2 train tasks of class 'low'"):
        lengths("skip", f"train={more}+{more}").open_mixture()


@pytest.mark.parametrize("policy", ["refuse", "skip"])
def test_a_prompt_that_its_environment_makes_too_long_is_named_or_masks_its_samples(policy, monkeypatch):
    async def run_episode(*arguments, **options):
        raise PromptTooLongError("the prompt has 90 tokens, the engine's longest sequence 80")

    async def gather(*episodes):
        await asyncio.gather(*episodes)

    monkeypatch.setattr(episodes, "run_episode", run_episode)
    config = tiny(**{"rl.rollout.long_prompts": policy})
    runner = episodes.Episodes(config, SimpleNamespace(gather=gather), None, None, None)
    task = Task("t0", "length", ({"role": "user", "content": "a"},), "share_of_low_bytes")
    group = PromptGroup(0, (1, 0), DrawnTask("low", task), [None, None])
    if policy == "refuse":
        with refused("'t0' of class 'low' .*rl.rollout.max_length 80: the prompt has 90 tokens"):
            asyncio.run(runner.run(1, [group]))
    else:
        asyncio.run(runner.run(1, [group]))
        assert [each.status for each in group.trajectories] == ["masked"] * 2
        assert all("the prompt has 90 tokens" in each.error for each in group.trajectories)
        assert [each.key for each in group.trajectories] == [(1, 0, 0), (1, 0, 1)]
