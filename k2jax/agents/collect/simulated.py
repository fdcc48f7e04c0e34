"""An engine and a tool that work nothing and take their time: for measurements and tests of what is around them.

Everything is drawn from the seed of a request or an episode, so that a repeated one gives the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from k2jax.agents.collect.wire_messages import EngineLoad
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.types import Workplace
from k2jax.client import Client, Completion, OnToken, Sampling, new_completion, refuse_media
from k2jax.errors import UserError
from k2jax.text.tokenizer import Tokenizer

TOOL = "look"
_WORDS = "the model thinks about what it has seen and says so in words that are drawn from a text "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """How long things take and how many there are.

    Attributes:
        tokens: least tokens of an answer.
        tokens_drawn: mean of those that are drawn beyond [tokens].
        calls: least calls of the tool in an episode.
        more: probability of a further call after those.
        max_calls: most calls in an episode.
        answer: mean time of an answer [s]; half of it is fixed, half is drawn.
        tool: mean time of a call of the tool [s], drawn.
    """

    tokens: int = 70
    tokens_drawn: float = 20.0
    calls: int = 2
    more: float = 0.3
    max_calls: int = 6
    answer: float = 1.0
    tool: float = 0.2


class SimulatedEngine(Client):
    """A client whose answers call a tool a drawn number of times, in compact chat of single characters.

    Args:
        tokenizer: its vocabulary.
        simulation: times and numbers.

    Attributes:
        running: answers that are under way.
        max_running: the most at a time.
    """

    def __init__(self, tokenizer: Tokenizer, simulation: Simulation):
        self._end, self._simulation = tokenizer.eos, simulation
        self._text = np.array(tokenizer.encode(_WORDS * 40), np.int32)
        self._call = np.array(tokenizer.encode(f"\n!{TOOL} 7"), np.int32)
        self.running = self.max_running = 0

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """The drawn answer, after the drawn time; see ``Client.generate``."""
        sampling.check()
        refuse_media(self, media)
        if on_token is not None:
            raise UserError("a simulated engine does not report single tokens")
        simulation, rng = self._simulation, np.random.Generator(np.random.SFC64(sampling.seed))
        calls = int(np.count_nonzero(np.asarray(prompt) == self._end)) // 2  # a prompt, then an answer and a result
        length = simulation.tokens + int(rng.exponential(simulation.tokens_drawn))
        begin, uniform, drawn = int(rng.integers(len(_WORDS))), rng.random(), rng.exponential()
        again = calls < simulation.calls or (calls < simulation.max_calls and uniform < simulation.more)
        parts = [self._text[begin : begin + length], *([self._call] if again else []), [self._end]]
        tokens = np.concatenate(parts)[: sampling.max_tokens]
        logprobs = -rng.standard_exponential(len(tokens), np.float32)
        self.running += 1
        self.max_running = max(self.running, self.max_running)
        try:
            await self.rest(0.5 * simulation.answer * (1 + drawn))
        finally:
            self.running -= 1
        finish = "stop" if tokens[-1] == self._end else "length"
        return new_completion(tokens, logprobs, np.zeros(len(tokens)), finish, resume)

    async def rest(self, seconds: float) -> None:
        """Waits for as long as an answer takes [s]."""
        await asyncio.sleep(seconds)

    def load(self) -> EngineLoad:
        """How busy it is; its cache is never full."""
        return EngineLoad(0.0, self.running, 0, 0)


class SimulatedTools(FunctionTools):
    """The toolset of one tool, which takes a drawn time.

    Args:
        seconds: mean time of a call [s].
    """

    def __init__(self, seconds: float = 0.2):
        super().__init__([self.look])
        self._seconds = seconds

    async def open(self, workplace: Workplace) -> None:
        """See ``Toolset.open``."""
        self._drawn = np.random.Generator(np.random.SFC64(workplace.seed))

    async def look(self, place: int) -> str:
        """Looks at a place.

        Args:
            place: its number.
        """
        drawn = self._drawn.exponential()
        await asyncio.sleep(self._seconds * drawn)
        return f"{place}: " + "x" * (8 + int(8 * drawn))
