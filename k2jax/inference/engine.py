"""Continuous batching: requests join and leave between steps, and each step runs one chunk of some prompts and one new
token of every other sequence.

All shapes come from a short list, so that a long-lived engine compiles a bounded number of programs whatever it is
asked for. A sequence is its token ids and how many of them are in the cache; a prompt, a resumed request and the token
just drawn are all "ids that are not in the cache yet".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import numpy as np

from k2jax import runtime
from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.inference.forward import empty_cache, run_chunk
from k2jax.inference.mesh import ROWS, fetch, place, place_params
from k2jax.inference.mesh import size as mesh_size
from k2jax.inference.request import Request, Sampling, State, Token
from k2jax.inference.rows import Rows
from k2jax.inference.sampler import sample
from k2jax.inference.slots import Running, Slots
from pallas_kernels.implementation import resolve
from pallas_kernels.mla_decode import MOST_PAGES, PAGE_MULTIPLE

GROWTH = 4  # ratio of neighbouring sizes of rows, widths and contexts: padding against the number of programs
PREFILL_WIDTHS = (16, 64, 256)
PREFILL_TOKENS = 1024  # of one prefill program, rows times width: 64, 16 or 4 rows, all of which are sizes of rows


class EngineStats(NamedTuple):
    """Counters; the first six are states, the others only grow."""

    slots: int
    running: int
    waiting: int
    paused: int
    pages: int
    pages_in_use: int
    pages_cached: int
    tokens_generated: int
    prompt_tokens: int
    prompt_tokens_cached: int
    steps: int


class Engine:
    """Generates for many requests at a time. Not thread-safe; see ``worker.Worker``.

    Example:
        >>> engine = Engine(model.config, params)
        >>> [request] = engine.generate([prompt_ids], Sampling(max_tokens=50))

    Args:
        model: the architecture.
        params: its weights; they are computed with in the dtype of the embedding.
        slots: sequences that run at a time, over all devices.
        pages: of the cache, over all devices; by default as many as ``slots`` sequences of ``max_length`` need.
        page_size: tokens in a page.
        max_length: longest sequence, prompt and generated tokens together.
        version: number of the weights, recorded with every token.
        mesh: of ``inference.mesh.make_mesh``; None is the default device. Where several processes hold its devices,
            each of them makes the same calls in the same order and gets the same results.

    Raises:
        UserError: a size that makes no sense, or does not divide over the devices.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Any,
        *,
        slots: int = 16,
        pages: int | None = None,
        page_size: int = 16,
        max_length: int = 4096,
        version: int = 0,
        mesh: Mesh | None = None,
    ):
        longest, devices = -(-max_length // page_size), mesh_size(mesh)
        total = slots * longest if pages is None else pages
        if min(slots, page_size, max_length) < 1 or total < longest * devices:
            raise UserError(
                f"an engine needs slots, page_size and max_length above 0 and pages for one sequence of max_length "
                f"({longest}) on each of {devices} devices, not {slots}, {page_size}, {max_length} and {total}"
            )
        for name, number in (("slots", slots), ("pages", total)):
            if number % devices:
                raise UserError(
                    f"{name} {number} do not divide over {devices} devices; {-(-number // devices) * devices} would"
                )
        runtime.check_kernels(model)
        if resolve(model.kernels) != "xla" and model.attention == "mla":
            _check_pages(slots // devices, longest, page_size)
        self.model, self.slots, self.max_length, self.version, self.mesh = model, slots, max_length, version, mesh
        self._params = place_params(params, model, mesh)
        self._slots = Slots(devices, slots // devices, total // devices, page_size)
        self._cache = empty_cache(model, total + devices, page_size, params["embed"].dtype, mesh)
        self._row_sizes = _sizes(1, slots // devices)
        self._context_sizes = _sizes(min(4, longest), longest)
        self._waiting: deque[Request] = deque()
        self._paused: set[Request] = set()
        self._generated = self._prompt_tokens = self._cached_tokens = self._steps = 0

    # --- requests ---------------------------------------------------------------------------------------------------

    def make_request(
        self, prompt: Sequence[int], sampling: Sampling, on_token: Callable[[Request], bool | None] | None = None
    ) -> Request:
        """A request that is not queued yet; may be called from any thread.

        Raises:
            UserError: an empty or too long prompt, an id outside the vocabulary, a sampling parameter out of range.
        """
        sampling.check()
        prompt = tuple(int(token) for token in prompt)
        if not prompt:
            raise UserError("the prompt is empty")
        if len(prompt) >= self.max_length:
            raise UserError(f"the prompt has {len(prompt):,} tokens, the engine's longest sequence {self.max_length:,}")
        outside = next((token for token in prompt if not 0 <= token < self.model.vocab), None)
        if outside is not None:
            raise UserError(f"token id {outside} is outside the vocabulary of {self.model.vocab:,}")
        return Request(prompt, sampling, on_token)

    def enqueue(self, request: Request) -> None:
        """Lets a request wait for its turn."""
        self._prompt_tokens += len(request.prompt)
        self._waiting.append(request)

    def submit(
        self, prompt: Sequence[int], sampling: Sampling, on_token: Callable[[Request], bool | None] | None = None
    ) -> Request:
        """``make_request`` and ``enqueue``."""
        request = self.make_request(prompt, sampling, on_token)
        self.enqueue(request)
        return request

    def cancel(self, request: Request) -> None:
        """Ends a request and frees what it holds; a finished one is left alone."""
        if request.state != State.FINISHED:
            self._take_away(request)
            self._finish(request, "cancelled")

    def cancel_all(self) -> None:
        """Ends every request."""
        for request in [*self._waiting, *(running.request for running in self._slots.running), *self._paused]:
            self.cancel(request)

    def pause(self, request: Request) -> None:
        """Frees what a request holds but its tokens; ``resume`` lets it go on where it was."""
        if request.state in (State.WAITING, State.RUNNING):
            self._take_away(request)
            request.state = State.PAUSED
            self._paused.add(request)

    def resume(self, request: Request) -> None:
        """Queues a paused request before all others."""
        if request.state == State.PAUSED:
            self._paused.remove(request)
            request.state = State.WAITING
            self._waiting.appendleft(request)

    def update_params(self, params: Any, version: int) -> None:
        """Goes on with other weights of the same model; running requests compute their tokens so far anew.

        Nothing in the cache outlives its weights, and every token says which version chose it.
        """
        for running in reversed(self._slots.running[:]):
            self.pause(running.request)
            self.resume(running.request)
        self._slots.forget_prefixes()
        self._params, self.version = place_params(params, self.model, self.mesh), version

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling]) -> list[Request]:
        """Runs requests to their ends, in the order given."""
        each = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        requests = [self.submit(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
        while any(request.state != State.FINISHED for request in requests):
            self.step()
        return requests

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._slots.running)

    def stats(self) -> EngineStats:
        """Counters, cheap enough to ask for at any time."""
        return EngineStats(
            self.slots,
            len(self._slots.running),
            len(self._waiting),
            len(self._paused),
            self._slots.pages,
            self._slots.pages_in_use,
            self._slots.pages_cached,
            self._generated,
            self._prompt_tokens,
            self._cached_tokens,
            self._steps,
        )

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Admits what fits, runs one chunk of prompts, then one token of every sequence whose prompt is done."""
        self._steps += 1
        self._admit()
        prompts = [running for running in self._slots.running if running.pending > 1]
        if prompts:
            self._run(*self._prefill_batch(prompts))
        decoding = [running for running in self._slots.running if running.pending == 1]
        self._run(self._with_room(decoding, 1), 1)

    def _admit(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            running = self._slots.admit(request, self.version)
            if running is None:
                return
            self._waiting.popleft()
            request.state = State.RUNNING
            if not request.tokens:
                request.cached_tokens = running.computed
                self._cached_tokens += running.computed

    def _prefill_batch(self, prompts: list[Running]) -> tuple[list[Running], int]:
        """The oldest prompts, as many as one program takes at the width that suits the first of them."""
        # Half a width or less is better split over several programs of the next smaller one.
        fitting = [width for width in PREFILL_WIDTHS if prompts[0].pending > width // 2]
        width = fitting[-1] if fitting else PREFILL_WIDTHS[0]
        rows = Counter()  # of each device
        oldest = []
        for running in prompts:
            rows[running.device] += 1
            if rows[running.device] <= max(1, PREFILL_TOKENS // width):
                oldest.append(running)
        return self._with_room(oldest, width), width

    def _with_room(self, sequences: list[Running], width: int) -> list[Running]:
        """Those that have pages for their next ``width`` ids; others may have to make room for them."""
        chosen = [
            running
            for running in sequences
            if running in self._slots.running
            and self._slots.reserve(running, min(width, running.pending), self._put_back)
        ]
        return [running for running in chosen if running in self._slots.running]

    def _put_back(self, running: Running) -> None:
        self._take_away(running.request)
        running.request.state = State.WAITING
        self._waiting.appendleft(running.request)

    def _run(self, sequences: list[Running], width: int) -> None:
        """One program: the next ``width`` ids of each sequence, and a new token where these were its last."""
        if not sequences:
            return
        rows = Rows.of(sequences, width, mesh_size(self.mesh), lambda n: _at_least(self._row_sizes, n))
        columns = _at_least(self._context_sizes, max(len(running.pages) for running in sequences))
        chunk, targets = jax.tree.map(lambda array: place(array, ROWS, self.mesh), rows.chunk(width, columns))
        scored = width > 1 and any(running.request.sampling.prompt_logprobs for running in sequences)
        logits, logprobs, self._cache = run_chunk(
            self._params, self._cache, chunk, targets, config=self.model, prompt_logprobs=scored, mesh=self.mesh
        )
        finished = list(rows.done())
        drawn = self._sample(logits, rows) if finished else ()
        logprobs = fetch(logprobs) if scored else None
        for running, row, count in rows.used:
            if scored:
                self._score_prompt(running, logprobs[row], count)
            running.computed += count
            self._slots.learn(running, self.version)
        for running, row in finished:
            self._append(running, row, drawn)

    def _sample(self, logits: jax.Array, rows: Rows) -> tuple[np.ndarray, ...]:
        choice, drawn, truncated, top = rows.choice()
        choice = jax.tree.map(lambda array: place(array, ROWS, self.mesh), choice)
        return fetch(sample(logits, choice, drawn, truncated, min(top, self.model.vocab)))

    # --- what a program leaves behind -------------------------------------------------------------------------------

    def _score_prompt(self, running: Running, logprobs: np.ndarray, count: int) -> None:
        request = running.request
        if request.sampling.prompt_logprobs and len(request.prompt_logprobs) < len(request.prompt) - 1:
            del request.prompt_logprobs[running.computed :]  # a request that lost its pages scores its prompt anew
            room = len(request.prompt) - 1 - running.computed
            request.prompt_logprobs.extend(float(value) for value in logprobs[: max(0, min(count, room))])

    def _append(self, running: Running, row: int, drawn: tuple[np.ndarray, ...]) -> None:
        ids, chosen, best_ids, best = (part[row] for part in drawn)
        request = running.request
        top = tuple((int(i), float(p)) for i, p in zip(best_ids, best, strict=True))[: request.sampling.top_logprobs]
        request.tokens.append(Token(int(ids), float(chosen), self.version, top))
        running.ids.append(int(ids))
        self._generated += 1
        if int(ids) in request.sampling.stop_tokens:
            reason = "stop"
        elif len(request.tokens) >= request.sampling.max_tokens or len(running.ids) >= self.max_length:
            reason = "length"
        else:
            reason = None
        if reason is None:
            if request.on_token is not None and request.on_token(request) and request.state == State.RUNNING:
                self._take_away(request)
                request.state, request.finish_reason = State.FINISHED, "stop"
            return
        self._take_away(request)
        self._finish(request, reason)

    def _take_away(self, request: Request) -> None:
        """Removes a request from wherever it is and releases its pages."""
        self._paused.discard(request)
        if request.state == State.WAITING:
            self._waiting.remove(request)
        self._slots.take_away(request)

    def _finish(self, request: Request, reason: str) -> None:
        request.state, request.finish_reason = State.FINISHED, reason
        if request.on_token is not None:
            request.on_token(request)


def _check_pages(slots: int, longest: int, page_size: int) -> None:
    """What the decode kernel asks of the pages."""
    if page_size % PAGE_MULTIPLE:
        raise UserError(f"the decode kernel needs a page_size that is a multiple of {PAGE_MULTIPLE}, not {page_size}")
    if slots * longest > MOST_PAGES:
        raise UserError(
            f"{slots} slots of {longest:,} pages are more than the {MOST_PAGES:,} that the decode kernel can look up; "
            f"choose a page_size of {-(-slots * longest * page_size // MOST_PAGES // PAGE_MULTIPLE) * PAGE_MULTIPLE}"
        )


def _sizes(smallest: int, largest: int) -> list[int]:
    """Growing sizes from ``smallest`` to ``largest``."""
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * GROWTH))
    return sizes


def _at_least(sizes: list[int], needed: int) -> int:
    """The smallest of growing sizes that is enough."""
    return next(size for size in sizes if size >= needed)
