"""Tasks whose prompt leaves the response no room: seen at the start, before anything is sampled.

A prompt is what an episode begins with: declarations of tools, the instruction with its images. What only an open
environment knows, such as the tools of a server of MCP, is seen when an episode begins; see ``Episodes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import functools
import json
from typing import Any

from k2jax.agents.environment import Environment
from k2jax.agents.mixture import TaskMixture
from k2jax.agents.registry import environments
from k2jax.agents.task import Task
from k2jax.client import PromptTooLongError
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.media_reading import IMAGE_PART, VIDEO_PART, MediaReader, start_reading

_MARKUP = 128
"""More tokens than a format puts around a message or an image, or in front of the first one."""
_PATCHES_PER_TOKEN = 4
"""Patches of an image, with its padding, for each token that stands for it."""
_WITH_TOOLS = "chat"
"""The scaffold that shows a model the tools of the environment; agents of their own bring theirs."""


class PromptLengths:
    """What becomes of tasks by the length of their prompt, as ``config.rl.rollout.long_prompts`` says.

    Args:
        config: the experiment.
        chat: format of conversations.
        media: reads the images of messages; None for a model of text alone.
    """

    def __init__(self, config: Config, chat: ChatFormat, media: MediaReader | None = None):
        self._config, self._chat, self._media = config, chat, media
        self._most = config.rl.rollout.max_length - 1
        self._left_out: set[tuple[str, str]] = set()
        self._tokens_of_tools = functools.lru_cache(maxsize=1024)(self._measured_tools)

    def open_mixture(self) -> tuple[TaskMixture, str]:
        """The mixture of the tasks that fit, and how many were left out, in a line that is empty for none.

        Raises:
            UserError: a prompt is too long and is not to be left out, or none of a class is left.
        """
        rl, skip = self._config.rl, self._config.rl.rollout.long_prompts == "skip"
        mixture = TaskMixture(rl.tasks, self._config.train.seed, self._fits if skip else None)
        if skip and rl.eval_prompts:
            mixture.held_out(rl.eval_prompts)  # those that are left out are counted now
        if not skip:
            for kind, task in mixture.all_prompts(rl.eval_prompts):
                if reason := self.excess(task):
                    raise UserError(too_long(kind, task, reason, self._config))
        counts = Counter(kind for kind, _ in self._left_out)
        words = ", ".join(f"{count:,} of class {kind!r}" for kind, count in sorted(counts.items()))
        return mixture, words and f"prompts that leave no room in config.rl.rollout.max_length were left out: {words}"

    def excess(self, task: Task) -> str:
        """Why the prompt of a task leaves no room for a token; empty where it does, or where the episode says more.

        What surely fits is not encoded, and its images are not read.
        """
        try:
            tools = known_tools(task)
            tokens = 0 if self._surely_fits(task, tools) else self._measured(task, tools)
        except PromptTooLongError as error:
            return str(error)
        except UserError:  # the episode says what is wrong, if its environment shows the messages
            return ""
        if tokens <= self._most:
            return ""
        declared = f", {self._tokens_of_tools(json.dumps(tools)):,} of them for tools" if tools else ""
        return f"it has {tokens:,} tokens{declared}, and one is sampled"

    def _surely_fits(self, task: Task, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the prompt fits if every byte of text were a token, and every image as large as one may be."""
        size = _MARKUP * (1 + len(task.instruction))
        size += self._tokens_of_tools(json.dumps(tools)) if tools else 0
        images = 0
        for message in task.instruction:
            content = message.get("content")
            for part in content if isinstance(content, list | tuple) else [{"text": content or ""}]:
                kind = part.get("type") if isinstance(part, Mapping) else None
                if self._media is not None and kind == VIDEO_PART:
                    return False
                images += kind == IMAGE_PART
                size += len(str(part.get("text", "")).encode()) if isinstance(part, Mapping) else 0
        if self._media is None or not images:
            return size <= self._most
        largest = self._config.data.images.patches // _PATCHES_PER_TOKEN + _MARKUP
        return images == 1 and size + largest <= self._most  # several may be more patches than a row has room for

    def _measured(self, task: Task, tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of a task's prompt with its generation prompt; without images for a model of text alone."""
        builder, reading = ChatBuilder(self._chat, tools), start_reading(self._media)
        for message in task.instruction:
            builder.add(_text_alone(message) if self._media is None else reading.read(message))
        builder.open_assistant(task.thinking)
        return len(builder.tokens)

    def _measured_tools(self, tools: str) -> int:
        """Tokens of declarations, given as JSON, with a message without content."""
        builder = ChatBuilder(self._chat, json.loads(tools))
        builder.add({"role": "user", "content": ""})
        return len(builder.tokens)

    def _fits(self, kind: str, task: Task) -> bool:
        if not self.excess(task):
            return True
        self._left_out.add((kind, task.id))
        return False


def too_long(kind: str, task: Task, reason: str, config: Config) -> str:
    """What is wrong with a task whose prompt is too long, in one line that names it and the keys."""
    return (
        f"the prompt of the task {task.id!r} of class {kind!r} is too long for config.rl.rollout.max_length "
        f"{config.rl.rollout.max_length}: {reason}; raise that, or leave such tasks out with "
        "config.rl.rollout.long_prompts=skip"
    )


def known_tools(task: Task) -> Sequence[Mapping[str, Any]]:
    """Declarations of tools with which the task's conversation begins, as far as they are known now."""
    made = environments.get(task.environment)
    if task.scaffold.split()[:1] != [_WITH_TOOLS] or not (isinstance(made, type) and issubclass(made, Environment)):
        return ()
    return made.tools_of(task)


def _text_alone(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "".join(part["text"] for part in content if isinstance(part, Mapping) and "text" in part)
    return {**message, "content": content}
