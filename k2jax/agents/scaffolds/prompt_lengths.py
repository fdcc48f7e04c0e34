"""Tasks whose instruction leaves the response no room: seen at the start, before anything is sampled.

What an environment adds, such as declarations of tools and images, is seen when an episode begins; see ``Episodes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
import contextlib
import itertools
from typing import Any

from k2jax.agents.mixture import TaskMixture
from k2jax.agents.task import Task
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.text.chat import ChatBuilder, ChatFormat

_MARKUP = 128
"""More tokens than a format puts around a message, or in front of the first one."""


class PromptLengths:
    """What becomes of tasks by the length of their prompt, as ``config.rl.rollout.long_prompts`` says."""

    def __init__(self, config: Config, chat: ChatFormat):
        self._config, self._chat, self._most = config, chat, config.rl.rollout.max_length - 1
        self._left_out: set[tuple[str, str]] = set()

    def open_mixture(self) -> tuple[TaskMixture, str]:
        """The mixture of the tasks that fit, and how many were left out, in a line that is empty for none.

        Raises:
            UserError: a prompt is too long and is not to be left out, or none of a class is left.
        """
        rl, skip = self._config.rl, self._config.rl.rollout.long_prompts == "skip"
        mixture = TaskMixture(rl.tasks, self._config.train.seed, self._fits if skip else None)
        held_out = mixture.held_out(rl.eval_prompts) if rl.eval_prompts else []
        if not skip:
            for kind, task in itertools.chain(mixture.training_prompts(), held_out):
                if (tokens := self.tokens(task)) > self._most:
                    raise UserError(too_long(kind, task, f"it has {tokens:,} tokens, and one is sampled", self._config))
        counts = Counter(kind for kind, _ in self._left_out)
        words = ", ".join(f"{count:,} of class {kind!r}" for kind, count in sorted(counts.items()))
        return mixture, words and f"prompts that leave no room in config.rl.rollout.max_length were left out: {words}"

    def tokens(self, task: Task) -> int:
        """Tokens of a task's instruction with its generation prompt, without images; 0 where it surely fits."""
        messages = [_text_alone(message) for message in task.instruction]
        bytes_of_text = sum(len(str(message["content"] or "").encode()) for message in messages)
        if bytes_of_text + _MARKUP * (1 + len(messages)) <= self._most:  # no token is less than a byte
            return 0
        builder = ChatBuilder(self._chat)
        with contextlib.suppress(UserError):  # the episode says what is wrong, if its environment shows the messages
            for message in messages:
                builder.add(message)
            builder.open_assistant()
        return len(builder.tokens)

    def _fits(self, kind: str, task: Task) -> bool:
        if self.tokens(task) <= self._most:
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


def _text_alone(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "".join(part["text"] for part in content if isinstance(part, Mapping) and "text" in part)
    return {**message, "content": content}
