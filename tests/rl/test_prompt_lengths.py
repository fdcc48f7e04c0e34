"""Tasks whose prompt leaves no room for an answer: named before anything is sampled, or left out and counted."""

import asyncio
import dataclasses
from types import SimpleNamespace

from PIL import Image
import pytest

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.episode import Rollout
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.registry import datasets
from k2jax.agents.scaffolds.chat import rebuild
from k2jax.agents.scaffolds.prompt_lengths import PromptLengths
from k2jax.agents.task import Task
from k2jax.client import PromptTooLongError
from k2jax.data.vocabulary import MEDIA_TOKENS
from k2jax.rl import episodes
from k2jax.rl.groups import PromptGroup
from k2jax.rl.inputs import open_images
from k2jax.tasks.pictures.dataset import data_url
from k2jax.text import byte_tokenizer
from k2jax.text.chat import ChatBuilder, configured_chat
from tests.agents.gateway.scripted import CARD
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


def of_tools(policy, **overrides):
    """A task of three letters with a calculator, in a format that has tools."""
    datasets.add("lengths", "tests.rl.test_prompt_lengths:Lengths")
    chosen = {
        "rl.tasks.low.dataset": "lengths", "rl.tasks.low.options": ("train=3+4",), "rl.rollout.long_prompts": policy,
        "rl.tasks.low.tools": ("calculator",),
    }  # fmt: skip
    return PromptLengths(tiny(**chosen, **overrides), CARD.chat)


def episode_tokens():
    """Tokens of that task's prompt as its episode begins."""

    async def run():
        task = next(iter(Lengths("3").load()))
        task = dataclasses.replace(task, tools=("calculator",), environment="tools")
        rollout, environment = (
            Rollout(task, None, CARD.chat, CARD.tokenizer, EpisodeKey("train", 1, 0, 0)),
            EnvironmentMaker().make(task),
        )
        rollout.trajectory.metadata["seed"] = 0
        node, _ = await rebuild(rollout, environment)
        return len(rollout.trajectory.path_tokens(node))

    return asyncio.run(run())


def test_declarations_of_tools_are_part_of_a_prompt_s_length():
    tokens = episode_tokens()
    room = {"rl.rollout.max_length": tokens + 1, "data.sequence_length": 4096}
    with refused(f"'t1' of class 'low' .*: it has {tokens + 1:,} tokens, .* of them for tools, and one is sampled"):
        of_tools("refuse", **room).open_mixture()
    mixture, words = of_tools("skip", **room).open_mixture()
    assert [drawn.task.id for drawn in mixture.training_prompts()] == ["t0"]
    assert words.endswith("were left out: 1 of class 'low'")
    own = {"rl.tasks.low.scaffold": "black_box agent=codex folder=/", **room}  # its agent brings tools of its own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("k2jax.agents.gateway.agents.BlackBoxAgent.check_installed", lambda *_: None)
        of_tools("refuse", **own).open_mixture()


class Pictures:
    """A task for every size [pixels] of a white picture, two pictures where the size is repeated with x."""

    def __init__(self, sides: str, split: str = "train"):
        self._sides = sides.split("+")

    def load(self):
        for number, text in enumerate(self._sides):
            side = text.removesuffix("x")
            shades = range(200, 200 + (2 if text.endswith("x") else 1))
            urls = [data_url(Image.new("L", (int(side), int(side)), shade)) for shade in shades]
            content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            yield Task(f"t{number}", "length", ({"role": "user", "content": content},), "share_of_low_bytes")


def of_pictures(sides, max_length, patches):
    datasets.add("pictures_of_sides", "tests.rl.test_prompt_lengths:Pictures")
    tokenizer = byte_tokenizer(MEDIA_TOKENS)
    config = tiny(**{
        "rl.tasks.low.dataset": "pictures_of_sides", "rl.tasks.low.options": (f"sides={sides}",),
        "rl.rollout.max_length": max_length, "data.images.patches": patches, "data.sequence_length": 4096,
        "model.vocab": tokenizer.vocab_size, "model.vision.layers": 1,
    })  # fmt: skip
    media = open_images(config.model, config.data.images, tokenizer)
    return PromptLengths(config, configured_chat(tokenizer, "plain"), media)


def test_images_are_part_of_a_prompt_s_length():
    """A side of 280 pixels is 20 patches and 10 tokens; more patches than a row holds leave no room either."""
    of_pictures("28+280", 150, 1000).open_mixture()
    with refused(r"'t1' of class 'low' .*max_length 80: it has 1\d\d tokens, and one is sampled"):
        of_pictures("28+280", 80, 1000).open_mixture()
    of_pictures("280x", 300, 800).open_mixture()
    with refused("'t0' of class 'low' .*: images of 800 patches, more than the 796 of config.data.images.patches"):
        of_pictures("280x", 300, 796).open_mixture()


def test_an_image_that_surely_fits_is_not_read(monkeypatch):
    monkeypatch.setattr("k2jax.inference.media_reader.read_image", lambda *_: 1 / 0)
    of_pictures("280", 4000, 4000).open_mixture()


def test_a_damaged_image_is_left_to_its_episode():
    lengths = of_pictures("280", 150, 1000)
    url = "data:image/png;base64,AAAA"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a" * 200}]
    assert lengths.excess(Task("t", "d", ({"role": "user", "content": content},), "v")) == ""


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
