"""Cost of a sample with several engines: cache-aware routing and streaming against round-robin and whole batches.

The same trace of episodes is played on a clock that only counts: groups of samples of one prompt, turns whose number
and lengths are drawn with long tails, tools that take their time. An engine computes what its cache does not have of a
prompt, then decodes, slower the more sequences it has; beyond its slots requests wait. The cost of a sample is the time
of all engines, idle or not, divided by the samples that were trained on.

In whole batches an iteration's groups start together, and when the last has ended the engines wait for the update.
Streamed, a new group starts when another is complete, and updates overlap. The router is that of ``k2jax.rollout``;
what engines do is a model, whose constants are below.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.agents.collect.routing import BLOCK, KnownBlocks, Policy, Router, chained_blocks
from k2jax.bench.event_clock import EventClock
from k2jax.bench.timing import Row, cost_row

ENGINES, SLOTS, CACHE = 4, 32, 400_000  # engines, sequences of each, tokens of its cache
PREFILL = 10_000.0  # tokens/s
STEP, STEP_OF_A_SEQUENCE = 0.010, 0.0004  # time of a decoding step, and what each sequence adds [s]
GROUPS, SAMPLES, BATCH = 64, 8, 16  # groups of the trace, samples of a group, groups of an iteration
UPDATE = 20.0  # training on an iteration's groups [s]
BOUND = 8  # by how many requests an engine may be busier


class TraceEpisode(NamedTuple):
    """One sample of the trace.

    Attributes:
        key: (step, prompt, sample).
        prompt: int32 ``[P]``, shared by its group.
        answers: int32 arrays, one for each turn.
        results: int32 arrays, what the tool says after each turn but the last.
        waits: time of each tool [s].
    """

    key: tuple[int, int, int]
    prompt: np.ndarray
    answers: list[np.ndarray]
    results: list[np.ndarray]
    waits: np.ndarray


class PlayedTrace(NamedTuple):
    """What a way of scheduling comes to.

    Attributes:
        cost: engine time of a sample [s].
        seconds: from the first request to the last update [s].
        cached: share of the prompts' tokens that engines had in their caches.
    """

    cost: float
    seconds: float
    cached: float


def measure(rounds: int = 1) -> list[Row]:
    """Rows of both together, and of each by itself; nothing is timed, and ``rounds`` is not read."""
    trace = make_trace(0)
    sync = {policy: play(trace, policy, streamed=False) for policy in ("round_robin", "cache_aware")}
    streamed = {policy: play(trace, policy, streamed=True) for policy in ("round_robin", "cache_aware")}
    names = {"routing by cached prefix": (sync, "cache_aware"), "streaming": (streamed, "round_robin")}
    names["both"] = (streamed, "cache_aware")
    baseline, device = sync["round_robin"], f"{ENGINES} simulated engines"
    rows = []
    for name, (played, policy) in names.items():
        ours = played[policy]
        label = f"engine time of a sample, {name} ({ours.cached:.0%} of prompts cached)"
        theirs = f"round-robin, whole batches ({baseline.cached:.0%} cached)"
        rows.append(cost_row(label, ours.cost, baseline.cost, "s", theirs, device=device))
    return rows


def make_trace(seed: int, groups: int = GROUPS) -> list[TraceEpisode]:
    """Episodes in the order of their keys."""
    rng, episodes = np.random.default_rng(seed), []
    for prompt in range(groups):
        shared = _tokens(rng, 6000 + int(rng.exponential(4000)))
        difficulty = rng.lognormal(0.0, 0.6)
        for sample in range(SAMPLES):
            turns = 1 + min(40, int(rng.lognormal(1.6, 0.5) * difficulty))
            answers = [_tokens(rng, 20 + int(rng.lognormal(4.6, 0.8))) for _ in range(turns)]
            results = [_tokens(rng, 100 + int(rng.lognormal(6.5, 0.8))) for _ in range(turns - 1)]
            waits = rng.lognormal(0.0, 1.0, turns)
            episodes.append(TraceEpisode((0, prompt, sample), shared, answers, results, waits))
    return episodes


def play(trace: list[TraceEpisode], policy: Policy, *, streamed: bool) -> PlayedTrace:
    """Plays a trace and returns what it costs."""
    clock, engines = EventClock(), [_SimulatedEngine() for _ in range(ENGINES)]
    router = Router(ENGINES, policy, bound=BOUND, tokens=CACHE)
    samples_left = Counter(episode.key[:2] for episode in trace)
    by_prompt = [trace[begin : begin + SAMPLES] for begin in range(0, len(trace), SAMPLES)]
    waiting, complete, last_update = deque(by_prompt), itertools.count(1), 0.0

    def start(count: int) -> None:
        for _ in range(min(count, len(waiting))):
            for episode in waiting.popleft():
                _Playing(clock, engines, router, episode, ended)

    def ended(episode: TraceEpisode) -> None:
        nonlocal last_update
        samples_left[episode.key[:2]] -= 1
        if samples_left[episode.key[:2]]:
            return
        number = next(complete)
        if number % BATCH == 0:
            last_update = max(clock.now, last_update) + UPDATE
        if streamed:
            start(1)
        elif number % BATCH == 0:
            clock.after(last_update - clock.now, lambda: start(BATCH))

    start(BATCH)
    clock.run()
    seconds = max(clock.now, last_update)
    asked = sum(engine.asked for engine in engines)
    return PlayedTrace(seconds * ENGINES / len(trace), seconds, sum(engine.hits for engine in engines) / asked)


class _SimulatedEngine:
    """Slots, a queue and a cache of prefixes."""

    def __init__(self):
        self.running, self.hits, self.asked = 0, 0, 0
        self._queue: deque[tuple[np.ndarray, int, Callable[[], None]]] = deque()
        self._cache = KnownBlocks(CACHE // BLOCK)

    def submit(self, clock: EventClock, prompt: np.ndarray, tokens: int, done: Callable[[], None]) -> None:
        if self.running == SLOTS:
            self._queue.append((prompt, tokens, done))
            return
        self.running += 1
        chain = chained_blocks(prompt)
        cached = self._cache.cached(chain) * BLOCK
        self._cache.add(chain)
        self.hits += cached
        self.asked += len(prompt)
        seconds = (len(prompt) - cached) / PREFILL + tokens * (STEP + STEP_OF_A_SEQUENCE * self.running)

        def end() -> None:
            self.running -= 1
            if self._queue:
                self.submit(clock, *self._queue.popleft())
            done()

        clock.after(seconds, end)

    def keep(self, sequence: np.ndarray) -> None:
        self._cache.add(chained_blocks(sequence))


class _Playing:
    """An episode that goes from answer to tool to answer."""

    def __init__(
        self,
        clock: EventClock,
        engines: list[_SimulatedEngine],
        router: Router,
        episode: TraceEpisode,
        ended: Callable[[TraceEpisode], None],
    ):
        self._clock, self._engines, self._router = clock, engines, router
        self._episode, self._ended = episode, ended
        self._turn, self._context = 0, episode.prompt
        self._ask()

    def _ask(self) -> None:
        self._engine, _ = self._router.choose(self._context)
        answer = self._episode.answers[self._turn]
        self._engines[self._engine].submit(self._clock, self._context, len(answer), self._answered)

    def _answered(self) -> None:
        episode = self._episode
        self._context = np.concatenate([self._context, episode.answers[self._turn]])
        self._engines[self._engine].keep(self._context)
        self._router.done(self._engine, self._context)
        if self._turn + 1 == len(episode.answers):
            self._clock.after(0.0, lambda: self._ended(episode))
            return
        self._context = np.concatenate([self._context, episode.results[self._turn]])
        self._turn += 1
        self._clock.after(float(episode.waits[self._turn]), self._ask)


def _tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 1 << 17, count).astype(np.int32)
