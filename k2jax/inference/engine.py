"""Continuous batching: requests join and leave between steps, and each step runs one chunk of some prompts and one new
token of every other sequence.

All shapes come from a short list, so that a long-lived engine compiles a bounded number of programs whatever it is
asked for. A sequence is its token ids and how many of them are in the cache; a prompt, a resumed request and the token
just drawn are all "ids that are not in the cache yet".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from k2jax import runtime
from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.inference.forward import SCRATCH_PAGE, Chunk, empty_cache, run_chunk
from k2jax.inference.pages import Pages, digests
from k2jax.inference.request import MAX_TOP_LOGPROBS, Request, Sampling, State, Token
from k2jax.inference.sampler import Choice, sample
from k2jax.model import cast_params, model_specs, unstack_layers
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


class _Running:
    """A request with a slot: its pages, and how many of its ids are in them."""

    def __init__(self, request: Request, pages: list[int], computed: int):
        self.request, self.pages, self.computed = request, pages, computed
        self.ids = request.ids
        self.learnt = computed  # ids whose full pages are known

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed


class Engine:
    """Generates for many requests at a time. Not thread-safe; see ``worker.Worker``.

    Example:
        >>> engine = Engine(model.config, params)
        >>> [request] = engine.generate([prompt_ids], Sampling(max_tokens=50))

    Args:
        model: the architecture.
        params: its weights; they are computed with in the dtype of the embedding.
        slots: sequences that run at a time.
        pages: of the cache; by default as many as ``slots`` sequences of ``max_length`` need.
        page_size: tokens in a page.
        max_length: longest sequence, prompt and generated tokens together.
        version: number of the weights, recorded with every token.

    Raises:
        UserError: a size that makes no sense.
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
    ):
        longest = -(-max_length // page_size)
        total = slots * longest if pages is None else pages
        if min(slots, page_size, max_length) < 1 or total < longest:
            raise UserError(
                f"an engine needs slots, page_size and max_length above 0 and pages for one sequence of max_length "
                f"({longest}), not {slots}, {page_size}, {max_length} and {total}"
            )
        runtime.check_kernels(model)
        if resolve(model.kernels) != "xla" and model.attention == "mla":
            _check_pages(slots, longest, page_size)
        self.model, self.slots, self.max_length, self.version = model, slots, max_length, version
        self._params = self._cast(params)
        self._pages = Pages(total + 1, page_size)
        self._cache = empty_cache(model, total + 1, page_size, self._params["embed"].dtype)
        self._row_sizes = _sizes(1, slots)
        self._context_sizes = _sizes(min(4, longest), longest)
        self._waiting: deque[Request] = deque()
        self._running: list[_Running] = []
        self._paused: set[Request] = set()
        self._generated = self._prompt_tokens = self._cached_tokens = self._steps = 0

    def _cast(self, params: Any) -> Any:
        params = cast_params(params, model_specs(self.model), params["embed"].dtype)
        return unstack_layers(params) if jax.default_backend() == "cpu" else params

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
        for request in [*self._waiting, *(running.request for running in self._running), *self._paused]:
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
        for running in reversed(self._running[:]):
            self.pause(running.request)
            self.resume(running.request)
        self._pages.forget_all()
        self._params, self.version = self._cast(params), version

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling]) -> list[Request]:
        """Runs requests to their ends, in the order given."""
        each = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        requests = [self.submit(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
        while any(request.state != State.FINISHED for request in requests):
            self.step()
        return requests

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._running)

    def stats(self) -> EngineStats:
        """Counters, cheap enough to ask for at any time."""
        return EngineStats(
            self.slots,
            len(self._running),
            len(self._waiting),
            len(self._paused),
            self._pages.total,
            self._pages.in_use,
            self._pages.cached,
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
        prompts = [running for running in self._running if running.pending > 1]
        if prompts:
            self._run(self._prefill_batch(prompts))
        decoding = [running for running in self._running if running.pending == 1]
        decoding = [running for running in decoding if self._reserve(running, 1)]
        decoding = [running for running in decoding if running in self._running]  # others may have made room
        if decoding:
            self._run((decoding, 1))

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            request = self._waiting[0]
            if self._prefix_is_coming(request):
                return
            running = self._start(request)
            if running is None:
                return
            self._waiting.popleft()
            request.state = State.RUNNING
            self._running.append(running)

    def _prefix_is_coming(self, request: Request) -> bool:
        """Whether another request is computing pages of this one's prefix: waiting for them is cheaper."""
        if request.sampling.prompt_logprobs:
            return False
        ids = request.ids[:-1]
        return any(
            other.pending > 1 and other.computed < _common_pages(ids, other.ids, self._pages.size)
            for other in self._running
        )

    def _start(self, request: Request) -> _Running | None:
        """A slot with the longest known prefix; None while there is no page for the next token."""
        ids, size = request.ids, self._pages.size
        known = [] if request.sampling.prompt_logprobs else self._pages.find(digests(ids[:-1], size, self.version))
        for page in known:
            self._pages.share(page)
        if self._pages.available < -(-len(ids) // size) - len(known) and self._running:
            for page in known:
                self._pages.release(page)
            return None
        if not request.tokens:
            request.cached_tokens = len(known) * size
            self._cached_tokens += request.cached_tokens
        return _Running(request, known, len(known) * size)

    def _prefill_batch(self, prompts: list[_Running]) -> tuple[list[_Running], int]:
        """The oldest prompts, as many as one program takes at the width that suits the first of them."""
        # Half a width or less is better split over several programs of the next smaller one.
        fitting = [width for width in PREFILL_WIDTHS if prompts[0].pending > width // 2]
        width = fitting[-1] if fitting else PREFILL_WIDTHS[0]
        chosen: list[_Running] = []
        for running in prompts[: max(1, PREFILL_TOKENS // width)]:
            if running in self._running and self._reserve(running, min(width, running.pending)):
                chosen.append(running)
        return [running for running in chosen if running in self._running], width

    def _reserve(self, running: _Running, new: int) -> bool:
        """Pages for ``new`` more ids, taken from the youngest request where there are none left."""
        needed = -(-(running.computed + new) // self._pages.size) - len(running.pages)
        while needed > self._pages.available:
            youngest = self._running[-1]
            if youngest is running:
                self._put_back(running)
                return False
            self._put_back(youngest)
        running.pages.extend(self._pages.take() for _ in range(needed))
        return True

    def _put_back(self, running: _Running) -> None:
        self._take_away(running.request)
        running.request.state = State.WAITING
        self._waiting.appendleft(running.request)

    def _run(self, batch: tuple[list[_Running], int]) -> None:
        """One program: the next ``width`` ids of each sequence, and a new token where these were its last."""
        sequences, width = batch
        if not sequences:
            return
        rows = next(size for size in self._row_sizes if size >= len(sequences))
        counts = [min(width, running.pending) for running in sequences]
        chunk, targets = self._chunk(sequences, counts, rows, width)
        scored = any(running.request.sampling.prompt_logprobs and counts[0] > 1 for running in sequences)
        logits, logprobs, self._cache = run_chunk(
            self._params, self._cache, chunk, targets, config=self.model, prompt_logprobs=scored
        )
        finished_chunk = [running for running, count in zip(sequences, counts, strict=True) if count == running.pending]
        drawn = self._sample(logits, sequences, rows) if finished_chunk else None
        for row, (running, count) in enumerate(zip(sequences, counts, strict=True)):
            done = count == running.pending
            if scored:
                self._score_prompt(running, np.asarray(logprobs[row]), count)
            running.computed += count
            self._learn(running)
            if done:
                self._append(running, row, drawn)

    def _chunk(self, sequences: list[_Running], counts: list[int], rows: int, width: int) -> tuple[Chunk, Any]:
        most = max(len(running.pages) for running in sequences)
        columns = next(size for size in self._context_sizes if size >= most)
        tokens, targets = np.zeros((2, rows, width), np.int32)
        start, count = np.zeros((2, rows), np.int32)
        pages = np.full((rows, columns), SCRATCH_PAGE, np.int32)
        for row, (running, n) in enumerate(zip(sequences, counts, strict=True)):
            at = running.computed
            tokens[row, :n] = running.ids[at : at + n]
            following = running.ids[at + 1 : at + n + 1]
            targets[row, : len(following)] = following
            start[row], count[row] = at, n
            pages[row, : len(running.pages)] = running.pages
        return Chunk(jnp.asarray(tokens), jnp.asarray(count), jnp.asarray(start), jnp.asarray(pages)), targets

    def _sample(self, logits: jax.Array, sequences: list[_Running], rows: int) -> tuple[np.ndarray, ...]:
        asked = [running.request.sampling for running in sequences]
        fill = rows - len(asked)
        choice = Choice(
            np.array([one.temperature for one in asked] + [0.0] * fill, np.float32),
            np.array([one.top_p for one in asked] + [1.0] * fill, np.float32),
            np.array([one.min_p for one in asked] + [0.0] * fill, np.float32),
            np.array([one.top_k for one in asked] + [0] * fill, np.int32),
            np.array([one.seed for one in asked] + [0] * fill, np.uint32),
            np.array([len(running.request.tokens) for running in sequences] + [0] * fill, np.int32),
        )
        truncated = any(one.top_p < 1.0 or one.top_k or one.min_p for one in asked)
        top = MAX_TOP_LOGPROBS if any(one.top_logprobs for one in asked) else 0
        drawn = any(one.temperature > 0.0 for one in asked)
        return jax.device_get(sample(logits, choice, drawn, truncated, min(top, self.model.vocab)))

    # --- what a program leaves behind -------------------------------------------------------------------------------

    def _score_prompt(self, running: _Running, logprobs: np.ndarray, count: int) -> None:
        request = running.request
        if request.sampling.prompt_logprobs and len(request.prompt_logprobs) < len(request.prompt) - 1:
            del request.prompt_logprobs[running.computed :]  # a request that lost its pages scores its prompt anew
            room = len(request.prompt) - 1 - running.computed
            request.prompt_logprobs.extend(float(value) for value in logprobs[: max(0, min(count, room))])

    def _learn(self, running: _Running) -> None:
        """Makes the pages that just became full known to later requests."""
        size = self._pages.size
        full = running.computed // size
        if full > running.learnt // size:
            known = digests(running.ids[: full * size], size, self.version)
            for page, digest in itertools.islice(zip(running.pages, known, strict=False), running.learnt // size, None):
                self._pages.learn(page, digest)
            running.learnt = full * size

    def _append(self, running: _Running, row: int, drawn: tuple[np.ndarray, ...]) -> None:
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
        for running in [running for running in self._running if running.request is request]:
            self._running.remove(running)
            for page in reversed(running.pages):  # the end of a prefix is forgotten before its beginning
                self._pages.release(page)

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


def _common_pages(a: Sequence[int], b: Sequence[int], size: int) -> int:
    """Leading ids that both have in common, in whole pages."""
    end = 0
    while len(a) >= end + size and a[end : end + size] == b[end : end + size]:
        end += size
    return end


def _sizes(smallest: int, largest: int) -> list[int]:
    """Growing sizes from ``smallest`` to ``largest``."""
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * GROWTH))
    return sizes
