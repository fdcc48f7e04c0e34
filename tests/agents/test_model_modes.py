"""Answers with reasoning or without, and tools whose results have images."""

import asyncio

import pytest

from k2jax.agents.environments.single_turn import SingleTurn
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.task import Task
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.image_results import UNSEEN
from k2jax.agents.toolsets.types import Toolset, declared, parameters_of
from k2jax.client import PromptTooLongError, Sampling, ScriptedClient
from k2jax.config import task as task_config
from k2jax.errors import UserError
from k2jax.text import chat_format
from tests.agents.tool_episodes import KEY, compact_client, episode, task
from tests.text import kimi

TOKENIZER = kimi.thinking_tokenizer()
CHAT = chat_format(TOKENIZER)
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("thinking", "sampled", "content", "reasoning"),
    [
        (True, "hm</think>42", "42", "hm"),
        (False, "42", "42", None),
        (True, "42", "", "42"),  # reasoning that does not end
    ],
)
def test_an_episode_is_sampled_in_thinking_or_instant_mode_as_its_task_says(thinking, sampled, content, reasoning):
    chosen = Task("t", "d", ({"role": "user", "content": "?"},), "").with_choices(task_config(thinking=thinking))
    head, mark, rest = sampled.partition("</think>")
    ids = [*TOKENIZER.encode(head), *([TOKENIZER.special_id(mark)] if mark else []), *TOKENIZER.encode(rest), CHAT.end]
    client = ScriptedClient(lambda prompt, sampling: ids)
    ended = asyncio.run(
        run_episode(chosen, client, CHAT, TOKENIZER, SingleTurn(), key=KEY, seed=1, sampling=Sampling())
    )
    prompt, _ = client.calls[0]
    begins = CHAT.generation_prompt if thinking else CHAT.direct_prompt
    assert list(prompt[-len(begins) :]) == list(begins) and list(CHAT.generation_prompt) != list(CHAT.direct_prompt)
    message = ended.nodes[-1].message
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)
    assert Task.from_json(chosen.to_json()).thinking == thinking


class Camera(Toolset):
    """Returns what it is made with."""

    def __init__(self, result):
        self.result, self.tools = result, [declared("calc", "Looks.", parameters_of({}, ()))]

    async def call(self, name, arguments):
        return self.result


class Eyes:
    """Reads images as text; one is damaged and one too much."""

    def start(self):
        return self

    def read(self, message):
        parts = message.get("content")
        if not isinstance(parts, list):
            return message
        return {**message, "content": [self.part(part) for part in parts]}

    def part(self, part):
        url = part.get("image_url", {}).get("url", "")
        if "BAD" in url:
            raise UserError("the image is damaged")
        if "BIG" in url:
            raise PromptTooLongError("more patches than a row")
        return {"type": "text", "text": "(seen)"} if url else part

    def place(self, tokens):
        return ()


def looked(monkeypatch, result, media):
    """What the model is shown of a tool's result, and the episode."""
    monkeypatch.setattr("k2jax.agents.environments.tools.toolsets.make", lambda text: Camera(result))
    shown = []

    def say(text):
        shown.append(text)
        return "!calc" if len(shown) == 1 else "done"

    return shown, episode(compact_client(say), task(tools=("camera",)), ToolEnvironment(), max_tokens=90, media=media)


def picture(data):
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


@pytest.mark.parametrize(
    ("media", "data", "part"),
    [
        (Eyes(), "AAAA", "left(seen)"),
        (None, "AAAA", f"left{UNSEEN}"),
        (Eyes(), "BAD", "left[an image that cannot be read: the image is damaged]"),
    ],
)
def test_a_model_is_shown_the_image_of_a_result_or_why_it_is_not(monkeypatch, media, data, part):
    shown, ended = looked(monkeypatch, [{"type": "text", "text": "left"}, picture(data)], media)
    assert (ended.status, len(shown)) == ("finished", 2), ended.error
    assert part in shown[1]


def test_an_image_beyond_the_budget_ends_the_episode_and_not_the_run(monkeypatch):
    shown, ended = looked(monkeypatch, [picture("BIG")], Eyes())
    assert (ended.status, len(shown)) == ("truncated", 1)


@pytest.mark.parametrize(
    "result",
    [
        7,
        None,
        [],
        {"type": "text"},
        [{"type": "video"}],
        [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}],
    ],
)
def test_a_result_that_is_no_content_names_the_tool_that_returned_it(monkeypatch, result):
    _, ended = looked(monkeypatch, result, None)
    assert ended.status == "masked" and "return text, or a list of parts" in ended.error


def test_a_function_returns_an_image_as_a_part_and_other_lists_as_text():
    async def results():
        tools = FunctionTools([look, count])
        return await tools.call("look", {}), await tools.call("count", {})

    def look():
        return [PICTURE]

    def count():
        return [1, 2]

    assert asyncio.run(results()) == ([PICTURE], "[1, 2]")
