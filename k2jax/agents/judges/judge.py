"""A judge: any client, a format of questions, and the log in which its verdicts stand before they are used."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
from typing import NamedTuple

from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.errors import VerifierError
from k2jax.agents.judges.judge_formats import Choice, Comparison, JudgeFormat
from k2jax.agents.judges.rubrics import Rubric
from k2jax.agents.messages import read_message
from k2jax.agents.verdicts import COMPARED, LoggedVerdict, VerdictLog
from k2jax.client import Client, Sampling
from k2jax.errors import InfrastructureError
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory import Reward

_VALUES: dict[Choice, float] = {"first": 1.0, "second": 0.0, "tie": 0.5}
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
        choice: its verdict; None where it gave none that can be read, or the question is too long.
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
            return _logged(digest, None, "")
        sampling = Sampling(max_tokens=self._max_tokens, temperature=0.0, stop_tokens=(self._chat.end,))
        try:
            async with self._turn:
                completion = await self._client.generate(prompt, sampling)
        except InfrastructureError as error:
            return LoggedVerdict(digest, None, f"no verdict of the judge {self._name}: {error}")
        if completion.finish == "cancelled":
            return LoggedVerdict(digest, None, f"the judge {self._name} was interrupted")
        said = str(read_message(self._tokenizer, self._chat, completion.tokens).get("content") or "")
        return _logged(digest, self._style.read(said) if completion.finish == "stop" else None, said)


def _logged(digest: str, choice: Choice | None, said: str) -> LoggedVerdict:
    value = 0.5 if choice is None else _VALUES[choice]
    return LoggedVerdict(digest, Reward(value, info={"choice": choice, "said": said[:_SHOWN]}))


def _digest(name: str, question: str) -> str:
    return hashlib.sha256(json.dumps([name, question]).encode()).hexdigest()[:16]
