"""A judge: any client, a format of questions, and the log in which its verdicts stand before they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import contextlib
import dataclasses
import hashlib
import json
from typing import Any, NamedTuple

from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.errors import VerifierError
from k2jax.agents.judges.judge_formats import Choice, Comparison, JudgeFormat
from k2jax.agents.judges.rubrics import Rubric
from k2jax.agents.messages import read_message
from k2jax.agents.verdicts import COMPARED, LoggedVerdict, VerdictLog
from k2jax.client import ChatEndpoint, Client, PromptTooLongError, Sampling
from k2jax.errors import InfrastructureError
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import Reward

_VALUES: dict[Choice, float] = {"first": 1.0, "second": 0.0, "tie": 0.5}
TOO_LONG = "the question is longer than the judge reads"
"""What stands in the place of the words of a judge that was not asked; a long answer must not choose to be masked."""
_SHOWN = 2000  # characters of the judge's reasons that the log keeps


class Place(NamedTuple):
    """Where a comparison belongs in a run.

    Attributes:
        key: of the episode whose answer is shown first.
        second: sample of the same prompt whose answer is shown second.
    """

    key: EpisodeKey
    second: int

    def swapped(self) -> Place:
        """The same comparison in the other order."""
        return Place(dataclasses.replace(self.key, sample=self.second), self.key.sample)


class JudgeAnswer(NamedTuple):
    """What a judge said of a comparison.

    Attributes:
        choice: its verdict; None where it gave none that can be read. A question that is too long is a tie.
        said: its words, cut as the log keeps them.
    """

    choice: Choice | None
    said: str = ""


class Judge:
    """Asks a model which of two answers is better. It samples greedily, so that equal questions get equal verdicts.

    Args:
        client: the model; what it raises for failures of machines is an ``InfrastructureError``.
        chat: the model's conversations.
        tokenizer: the model's vocabulary.
        style: what it is asked.
        name: of the model; verdicts of another one are not replayed.
        max_tokens: of an answer; one that is cut has no verdict.
        max_length: longest prompt and answer together; None for no limit that is known here [tokens].
        log: verdicts are written to it, and replayed from it; None where nothing resumes.
        always_asks: the model is asked also where the log has its verdict. An engine in lockstep has to run the
            same programs after a resume as before, and then says the same.
        concurrency: requests at a time; None is no limit.

    Attributes:
        replayed: verdicts that came from the log.
    """

    def __init__(
        self,
        client: Client,
        chat: ChatFormat,
        tokenizer: Tokenizer,
        style: JudgeFormat,
        *,
        name: str,
        max_tokens: int,
        max_length: int | None = None,
        log: VerdictLog | None = None,
        always_asks: bool = False,
        concurrency: int | None = None,
    ):
        self._client, self._chat, self._tokenizer, self._style = client, chat, tokenizer, style
        self._name, self._max_tokens, self._max_length = name, max_tokens, max_length
        self._log, self._always_asks = log, always_asks
        self._turn = contextlib.nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
        self.replayed = 0

    def prompt(self, comparison: Comparison, rubrics: tuple[Rubric, ...]) -> list[int] | None:
        """Token ids of the question; None where it and an answer are longer than the model reads."""
        builder = ChatBuilder(self._chat)
        builder.add({"role": "user", "content": self._style.ask(comparison, rubrics)})
        builder.open_assistant()
        fits = self._max_length is None or len(builder.tokens) + self._max_tokens <= self._max_length
        return builder.tokens if fits else None

    async def choose(self, comparison: Comparison, rubrics: tuple[Rubric, ...], place: Place) -> JudgeAnswer:
        """Asks which of two answers is better.

        Raises:
            VerifierError: the judge could not be asked, now or when that was logged; the samples are to be masked.
            UserError: the judge refuses the request.
        """
        key, call = place
        digest = _digest(self._name, self._style.ask(comparison, rubrics))
        known = self._log.get(key, COMPARED, call) if self._log is not None else None
        known = known if known is not None and known.digest == digest else None
        verdict = known
        if known is None or self._always_asks:
            verdict = await self._verdict(comparison, rubrics, digest)
        if known is not None:
            self.replayed += 1
            verdict = known
        elif self._log is not None:
            self._log.append(key, verdict, COMPARED, call)
        if verdict.reward is None:
            raise VerifierError(verdict.error)
        return JudgeAnswer(verdict.reward.info["choice"], verdict.reward.info["said"])

    async def _verdict(self, comparison: Comparison, rubrics: tuple[Rubric, ...], digest: str) -> LoggedVerdict:
        prompt = self.prompt(comparison, rubrics)
        if prompt is None:
            return _logged(digest, "tie", TOO_LONG)
        try:
            async with self._turn:
                said, finish = await self._ask(self._style.ask(comparison, rubrics), prompt)
        except InfrastructureError as error:
            return LoggedVerdict(digest, None, f"no verdict of the judge {self._name}: {error}")
        except PromptTooLongError as error:
            return _logged(digest, "tie", f"{TOO_LONG}: {error}")
        if finish == "cancelled":
            return LoggedVerdict(digest, None, f"the judge {self._name} was interrupted")
        return _logged(digest, self._style.read(said) if finish == "stop" else None, said)

    async def _ask(self, question: str, prompt: Sequence[int]) -> tuple[str, str]:
        """What the model says, and the finish reason."""
        sampling = Sampling(max_tokens=self._max_tokens, temperature=0.0, stop_tokens=(self._chat.end,))
        completion = await self._client.generate(prompt, sampling)
        return str(read_message(self._chat, completion.tokens).get("content") or ""), completion.finish


class ChatJudge(Judge):
    """Asks any chat endpoint, by text alone: it needs neither the model's tokenizer nor its tokens.

    Args:
        endpoint: the server.
        style: what it is asked.
        options: ``max_tokens``, ``log`` and ``concurrency`` of ``Judge``.
    """

    def __init__(self, endpoint: ChatEndpoint, style: JudgeFormat, **options: Any):
        super().__init__(None, None, None, style, name=endpoint.model, **options)
        self._endpoint = endpoint

    def prompt(self, comparison: Comparison, rubrics: tuple[Rubric, ...]) -> list[int] | None:
        """No token ids: the endpoint alone knows them, and what is too long for it."""
        return []

    async def _ask(self, question: str, prompt: Sequence[int]) -> tuple[str, str]:
        messages = [{"role": "user", "content": question}]
        answer = await self._endpoint.answer(messages, max_tokens=self._max_tokens)
        return answer.text, answer.finish


def _logged(digest: str, choice: Choice | None, said: str) -> LoggedVerdict:
    value = 0.5 if choice is None else _VALUES[choice]
    return LoggedVerdict(digest, Reward(value, info={"choice": choice, "said": said[:_SHOWN]}))


def _digest(name: str, question: str) -> str:
    return hashlib.sha256(json.dumps([name, question]).encode()).hexdigest()[:16]
