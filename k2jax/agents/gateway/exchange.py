"""One request on its way: the model's tokens become the client's answer and, before its end is sent, a record."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
import contextlib
import dataclasses
import logging
import math
import secrets
import time
from typing import Any

from k2jax.agents.api import ApiError, Conversation, Delta, Detokenizer, GeneratedToken, GenerationRequest, ModelCard
from k2jax.agents.api.api_error import bad_request, unavailable
from k2jax.agents.api.content_blocks import AnswerBlocks
from k2jax.agents.gateway.history import EncodedHistory, MatchedHistory, addition_bytes
from k2jax.agents.gateway.session import GatewaySession
from k2jax.client import Client, Completion, Sampling
from k2jax.errors import InfrastructureError, UserError

LAST_TOKEN_SECONDS = 60.0
"""How long after its time a model may still take to the token that ends an answer [s]."""
_TOKEN_BYTES = 48
"""Memory of a token of a prompt, roughly: here, and as an integer in the tuple that an engine makes [bytes]."""
LOG = logging.getLogger("k2jax.gateway")


@dataclasses.dataclass(frozen=True)
class PreparedRequest:
    """A request that is ready to be sampled.

    Attributes:
        session: its rollout.
        history: number of the history that it goes on.
        match: where it leaves what is recorded there.
        encoded: the nodes that it adds, and all tokens and images before the answer.
        dialect: route of its dialect.
    """

    session: GatewaySession
    history: int
    match: MatchedHistory
    encoded: EncodedHistory
    dialect: str

    @property
    def conversation(self) -> Conversation:
        """What the client sent, without its messages; see ``MatchedHistory.without_messages``."""
        return self.match.conversation

    @property
    def held_bytes(self) -> int:
        """Memory that it takes until it is answered, roughly."""
        return _TOKEN_BYTES * len(self.encoded.prompt) + sum(map(addition_bytes, self.encoded.additions))

    def facts(self, began: float) -> dict[str, Any]:
        """What the log says about the request beside its tokens."""
        return {
            "dialect": self.dialect,
            "asked": dict(self.conversation.asked),
            "left_out": list(self.conversation.left_out),
            "stream": self.conversation.options.stream,
            "prompt_tokens": len(self.encoded.prompt),
            "new_messages": sum(addition.message is not None for addition in self.encoded.additions),
            "began": began,
            "ended": time.time(),
            "abandoned": False,
        }


class Exchange:
    """An answer that is being generated in a task of its own, which no disconnect ends before it is recorded.

    Attributes:
        request: prompt and options, for the dialect's response.
        session: see ``PreparedRequest``.
        held_bytes: see ``PreparedRequest``.
    """

    def __init__(self, prepared: PreparedRequest, client: Client, card: ModelCard, seconds: float = math.inf):
        """Begins to generate.

        Args:
            prepared: the request.
            client: of the model.
            card: the model.
            seconds: time that the model has from when the request is handed to it [s].
        """
        conversation = prepared.conversation
        self.request: GenerationRequest = dataclasses.replace(
            conversation.options,
            prompts=(prepared.encoded.prompt,),
            media=prepared.encoded.media,
            record=f"k2jax-{secrets.token_hex(8)}",
        )
        self.session, self.held_bytes = prepared.session, prepared.held_bytes
        self._prepared, self._client, self._card = prepared, client, card
        self._began = time.time()
        self._first_token: float | None = None
        self._deltas: asyncio.Queue[Delta | ApiError] = asyncio.Queue()
        self._abandoned = self._is_late = False
        self._seconds = seconds
        self._answer = AnswerBlocks()  # as the client receives it
        self._task = asyncio.create_task(self._run())

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yields the answer; the last delta has a finish reason and comes after the answer is recorded.

        Raises:
            ApiError: it could not be generated or recorded.
        """
        while True:
            delta = await self._deltas.get()
            if isinstance(delta, ApiError):
                raise delta
            yield delta
            if delta.finish is not None:
                return

    def abandon(self) -> None:
        """Ends the answer after its next token: nobody waits for it. What was sampled is recorded."""
        self._abandoned = True

    def on_end(self, callback: Callable[[Exchange], object]) -> None:
        """Calls back when nothing more happens."""
        self._task.add_done_callback(lambda _: callback(self))

    def cancel(self) -> None:
        """Ends the answer at once; nothing of it is recorded."""
        self._task.cancel()

    async def _run(self) -> None:
        session = self._prepared.session
        reserved: tuple[int, Sampling] | None = None
        try:
            reserved = await session.reserve(len(self._prepared.encoded.prompt), self._prepared.history > 0)
            if session.is_closed:
                raise ApiError(401, "this rollout has ended", code="invalid_api_key")
            if self._abandoned:
                raise ApiError(499, "the client closed the connection")
            if reserved is None:
                session.check_over_budget()
                facts = self._prepared.facts(self._began) | {"over_budget": True}
                await session.record(self._prepared.history, self._prepared.match, [], None, facts)
                self._deltas.put_nowait(Delta(0, finish="length"))
            else:
                self._deltas.put_nowait(await self._generate(*reserved))
        except ApiError as error:
            self._deltas.put_nowait(error)
        except UserError as error:
            self._deltas.put_nowait(bad_request(None, str(error)))
        except asyncio.CancelledError:
            self._deltas.put_nowait(unavailable("the gateway is shutting down"))
            raise
        except (RuntimeError, InfrastructureError, OSError) as error:
            LOG.error("a request could not be answered or recorded", exc_info=error)
            self._deltas.put_nowait(unavailable("the model cannot answer now"))
        except Exception:
            LOG.exception("a request failed")
            self._deltas.put_nowait(ApiError(500, "internal error; the gateway's log has the details"))
        finally:
            if reserved is not None:
                await session.release(reserved[1], len(self._prepared.encoded.prompt), self._prepared.history > 0)

    async def _generate(self, turn: int, sampling: Sampling) -> Delta:
        """Generates and records an answer; returns its last delta."""
        request = dataclasses.replace(self.request, sampling=sampling)
        feed = _TokenFeed(self, Detokenizer(request, 0, self._card.tokenizer), asyncio.get_running_loop())
        completion = await self._sampled(sampling, feed)
        feed.flush()  # what it still holds comes before the last delta
        last = feed.finish(completion)
        if len(completion.tokens):
            await self._record(turn, completion, last, sampling)
        if feed.failed:
            raise ApiError(500, "the generated tokens could not be decoded")
        if completion.finish == "cancelled":
            raise unavailable("the engine ended the answer")
        return last

    async def _sampled(self, sampling: Sampling, feed: _TokenFeed) -> Completion:
        """What the model samples in its time.

        Raises:
            ApiError: it sampled nothing, not even a while after its time was over.
        """
        loop, encoded = asyncio.get_running_loop(), self._prepared.encoded
        limited = math.isfinite(self._seconds)
        timer = loop.call_later(self._seconds, self._end_soon) if limited else None
        asked = {"on_token": feed.on_token, "media": encoded.media}
        try:
            async with asyncio.timeout(self._seconds + LAST_TOKEN_SECONDS if limited else None):
                completion = await self._client.generate(encoded.prompt, sampling, **asked)
        except TimeoutError:
            raise ApiError(504, f"the model gave no token for {self._seconds:g} seconds") from None
        finally:
            if timer is not None:
                timer.cancel()
        ended = completion.finish == "stop" and completion.tokens[-1] in sampling.stop_tokens
        return completion._replace(finish="length") if self._is_late and not ended else completion

    def _end_soon(self) -> None:
        """Ends the answer after its next token."""
        self._is_late = True

    async def _record(self, turn: int, completion: Completion, last: Delta, sampling: Sampling) -> None:
        prepared, session = self._prepared, self._prepared.session
        self._answer.feed(last)
        cut = self._abandoned and completion.finish == "stop" and completion.tokens[-1] not in sampling.stop_tokens
        finish = "cancelled" if cut else completion.finish
        message = answer_message(self._answer)
        node = session.sampled_node(turn, completion, finish, message, prepared.history > 0)
        facts = prepared.facts(self._began) | {"first_token": self._first_token, "abandoned": self._abandoned}
        facts["record"] = self.request.record
        await session.record(prepared.history, prepared.match, prepared.encoded.additions, node, facts)

    def begins(self) -> None:
        """Notes the time of the first token."""
        if self._first_token is None:
            self._first_token = time.time()

    def deliver(self, delta: Delta) -> None:
        """Hands a delta without a finish reason to the client; runs on the event loop."""
        self._answer.feed(delta)
        self._deltas.put_nowait(delta)

    @property
    def is_over(self) -> bool:
        """Whether the answer ends after its next token: nobody waits for it, or its time is over."""
        return self._abandoned or self._is_late


class _TokenFeed:
    """Detokenizes an answer on the thread that generates it.

    To wake the event loop for a token costs more than the token. A stream is woken once for all tokens that have come
    until it is awake, and an answer that is sent whole not at all.
    """

    def __init__(self, exchange: Exchange, detokenizer: Detokenizer, loop: asyncio.AbstractEventLoop):
        self._exchange, self._detokenizer, self._loop = exchange, detokenizer, loop
        self._held: deque[Delta] = deque()  # that the event loop has not taken yet
        self._is_woken = False
        self._last: Delta | None = None  # the delta with the finish reason, which waits for the record
        self.failed = False

    def on_token(self, token: int, logprob: float) -> bool:
        """Feeds a token; see ``OnToken``."""
        if self._last is None and not self.failed:
            try:
                delta = self._detokenizer.feed([GeneratedToken(token, logprob)])
            except Exception:  # an exception here would end the engine, and with it every other answer
                LOG.exception("the generated tokens could not be decoded")
                self.failed = True
                return True
            if delta.finish is not None:
                self._last = delta
            else:
                self._exchange.begins()
                self._held.append(delta)
                self._wake()
        return self._last is not None or self.failed or self._exchange.is_over

    def flush(self) -> None:
        """Hands over all that is held; runs on the event loop."""
        self._is_woken = False  # before anything is taken: what comes from here on wakes again
        while self._held:
            self._exchange.deliver(self._held.popleft())

    def _wake(self) -> None:
        if self._exchange.request.stream and not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, so no client is left
                self._loop.call_soon_threadsafe(self.flush)

    def finish(self, completion: Completion) -> Delta:
        """The last delta, with the finish reason."""
        if self.failed:
            return Delta(0, finish="stop")
        if self._last is None:
            self._last = self._detokenizer.feed([], "stop" if completion.finish == "cancelled" else completion.finish)
        return self._last


def answer_message(answer: AnswerBlocks) -> dict[str, Any]:
    """Returns an answer as a message in OpenAI's chat format."""

    def joined(kind: str) -> str:
        return "".join(block.text for block in answer.blocks if block.kind == kind)

    message: dict[str, Any] = {"role": "assistant", "content": joined("text")}
    if reasoning := joined("reasoning"):
        message["reasoning_content"] = reasoning
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.text}}
        for block in answer.blocks
        if block.kind == "call"
    ]
    return message | ({"tool_calls": calls} if calls else {})
