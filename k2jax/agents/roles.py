"""Who answers: the policy, or under the name of a role a frozen checkpoint, such as a sub-agent or a simulated user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from k2jax.agents.messages import read_message
from k2jax.client import Client, Sampling
from k2jax.errors import UserError, nearest
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory.steps import POLICY


class RoleClient(NamedTuple):
    """The client of a role, and what a conversation with it needs.

    Attributes:
        client: the model. Who holds an episode waits for one of its answers at a time.
        chat: format of its conversations.
        tokenizer: its vocabulary.
        sampling: how its messages are sampled, with a seed that is the caller's to choose; None of the policy, whose
            classes of tasks say that.
    """

    client: Client
    chat: ChatFormat
    tokenizer: Tokenizer
    sampling: Sampling | None = None

    async def answer(self, messages: Sequence[Mapping[str, Any]], seed: int, thinking: bool = True) -> dict[str, Any]:
        """The role's next message in a conversation, with the random numbers of a seed.

        Args:
            messages: the conversation so far, in OpenAI's format; a simulated user's own words are the assistant's.
            seed: of this message.
            thinking: whether it begins with reasoning, of models that reason.

        Returns:
            An assistant's message.

        Raises:
            PromptTooLongError: the conversation is as long as the longest sequence.
            ValueError: it is the policy, which has no sampling of its own.
        """
        if self.sampling is None:
            raise ValueError("the policy's messages are sampled as its classes of tasks say; ask a role, or its client")
        builder = ChatBuilder(self.chat)
        for message in messages:
            builder.add(message)
        builder.open_assistant(thinking)
        stops = (self.chat.end, *self.sampling.stop_tokens)
        asked = dataclasses.replace(self.sampling, seed=seed, stop_tokens=stops)
        completion = await self.client.generate(builder.tokens, asked)
        return read_message(self.tokenizer, self.chat, completion.tokens.tolist(), thinking)


class Roles:
    """The roles of a run, over clients of any kind.

    Args:
        clients: by the name of the role, that of the policy, ``POLICY``, among them.
    """

    def __init__(self, clients: Mapping[str, RoleClient]):
        self._clients = dict(clients)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all roles."""
        return tuple(self._clients)

    def client_of(self, role: str = POLICY) -> RoleClient:
        """The client of a role.

        Raises:
            UserError: there is no such role.
        """
        check_role(role, self.names)
        return self._clients[role]


def check_role(role: str, names: tuple[str, ...]) -> None:
    """Raises UserError, in a line, where a role is not among those that there are."""
    if role not in names:
        known = nearest(role, list(names))
        raise UserError(f"no role {role!r} answers here; config.rl.roles has those of python -m k2jax.rl{known}")
