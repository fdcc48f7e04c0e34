"""Continuous batching: requests join and leave the batch between steps.

A step runs one chunk of some prompts and generates a few tokens of every other sequence. A sequence is its token ids,
and how many of them are in the cache; a prompt, a resumed request and the token just drawn are all "ids that are not in
the cache yet".
"""

from __future__ import annotations

from collections import Counter, abc, deque
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from k2jax import runtime
from k2jax.client import Sampling
from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.inference import shapes
from k2jax.inference.constraints import start_constraint
from k2jax.inference.decode import STEPS
from k2jax.inference.media import PlacedChunk, check_media
from k2jax.inference.programs import Programs, RowResult
from k2jax.inference.prompt_scores import score_prompt, top_pairs
from k2jax.inference.request import Request, State, checked_ids
from k2jax.inference.scheduler import Scheduler, Sequence, by_media
from k2jax.inference.stats import EngineStats
from k2jax.inference.weights import EngineWeights, Leaves
from k2jax.text.constrained import Grammars

OnRequest = Callable[[Request], "bool | None"]


class Engine:
    """Generates for many requests at a time. Not thread-safe; see ``worker.Worker``.

    Requests with a constraint need ``grammars`` of the vocabulary, which are the caller's to set.

    Example:
        >>> engine = Engine(model.config, params)
        >>> [request] = engine.generate([prompt_ids], Sampling(max_tokens=50))

    Args:
        model: the architecture.
        params: its weights, a tree of NumPy or JAX arrays; without the group ``vision`` it reads text alone. The engine
            copies them, here and in ``update_params``: the caller may donate, delete or overwrite its arrays
            afterwards. Computation takes the dtype of the embedding. A tree of ShapeDtypeStructs makes an engine that
            waits for its first ``update_params``.
        slots: sequences that run at a time, over all devices.
        pages: of the cache, over all devices; by default as many as ``slots`` sequences of ``max_length`` need, but on
            a CPU at most ``shapes.CPU_CACHE_BYTES`` of them, and room for one such sequence on each device at least.
        page_size: tokens in a page.
        max_length: longest sequence, prompt and generated tokens together.
        version: number of the weights, recorded with every token.
        mesh: of ``inference.mesh.make_engine_mesh``; None is the default device. Where several processes hold its
            devices, each of them makes the same calls in the same order and gets the same results.
        donate: deletes each JAX array of ``params`` once it is copied, so that memory never holds two whole copies.
        feature_bytes: most features of images and video that are kept in the host's memory for prompts with the same
            content; what runs now is kept in any case.

    Attributes:
        programs: the device side.

    Raises:
        UserError: invalid sizes, or sizes that do not divide over the devices.
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
        donate: bool = False,
        feature_bytes: int = 1 << 30,
    ):
        counts = {"slots": slots, "pages": pages, "page_size": page_size, "max_length": max_length}
        sizes = shapes.EngineSizes.of(model, params["embed"].dtype, mesh, **counts)
        runtime.check_kernels(model)
        sizes.check(model)
        self.model, self.slots, self.max_length, self.version, self.mesh = model, slots, max_length, version, mesh
        self.programs = Programs(model, params, sizes, mesh, donate=donate, feature_bytes=feature_bytes)
        self._weights = self.programs.weights
        own = slots // sizes.devices, sizes.pages // sizes.devices  # of each device
        self._scheduler = Scheduler(sizes.devices, *own, page_size)
        self._waiting, self._paused = deque[Request](), dict[Request, None]()
        self.grammars: Grammars | None = None
        self._tokens_generated = self._prompt_tokens = self._prompt_tokens_cached = self._steps = self._preemptions = 0
        self._decode_steps = self._decode_tokens = self._prefill_tokens = 0

    # --- requests ---------------------------------------------------------------------------------------------------

    def make_request(
        self,
        prompt: abc.Sequence[int],
        sampling: Sampling,
        generated: abc.Sequence[int] = (),
        *,
        media: abc.Sequence[PlacedChunk] = (),
        on_token: OnRequest | None = None,
    ) -> Request:
        """A request that is not queued yet; may be called from any thread.

        Args:
            prompt: token ids, at least one.
            sampling: how tokens are chosen.
            generated: tokens that the request has generated before, elsewhere. It continues at their end with the
                random numbers that it would have had without the interruption, and they count towards ``max_tokens``.
            media: images and chunks of video that stand for some of the prompt's tokens, see ``media.place_chunks``.
            on_token: see Request.

        Raises:
            PromptTooLongError: the prompt is as long as the longest sequence.
            UserError: media of a model that reads none, or of other sizes than it takes; an empty prompt, an id outside
                the vocabulary, a sampling parameter out of range, a constraint that cannot be compiled.
        """
        sampling.check()
        prompt, generated = checked_ids(prompt, generated, sampling, self.model, self.max_length)
        if media and not self._weights.has_vision:
            raise UserError("the prompt has images or video, and this engine has no weights of a tower to read them")
        check_media(media, len(prompt), self.model)
        request = Request(prompt, sampling, on_token, tuple(media))
        request.constraint = start_constraint(sampling, self.grammars, self.model.vocab)
        request.resume_after(generated)
        return request

    def enqueue(self, request: Request) -> None:
        """Lets a request wait for its turn; a resumed one that has its last token already ends at once."""
        self._prompt_tokens += len(request.prompt)
        reason = request.reached_end(self.max_length) if request.tokens else None
        if reason is None:
            self._waiting.append(request)
        else:
            self._finish(request, reason)

    def submit(
        self,
        prompt: abc.Sequence[int],
        sampling: Sampling,
        generated: abc.Sequence[int] = (),
        *,
        media: abc.Sequence[PlacedChunk] = (),
        on_token: OnRequest | None = None,
    ) -> Request:
        """``make_request`` and ``enqueue``."""
        request = self.make_request(prompt, sampling, generated, media=media, on_token=on_token)
        self.enqueue(request)
        return request

    def sort_waiting(self) -> None:
        """Sorts waiting requests by their ``order``, so that admission does not depend on when they arrived."""
        self._waiting = deque(sorted(self._waiting, key=lambda request: request.order))

    def cancel(self, request: Request) -> None:
        """Ends a request and frees what it holds; a finished one is left alone."""
        if request.state != State.FINISHED:
            self._release(request)
            self._finish(request, "cancelled")

    @property
    def requests(self) -> list[Request]:
        """All that have not ended: those that wait, that run and that are paused."""
        return [*self._waiting, *(sequence.request for sequence in self._scheduler.running), *self._paused]

    def cancel_all(self) -> None:
        """Ends every request."""
        for request in self.requests:
            self.cancel(request)

    def pause(self, request: Request) -> None:
        """Frees what a request holds but its tokens; ``resume`` lets it continue from there."""
        if request.state in (State.WAITING, State.RUNNING):
            self._release(request)
            request.state = State.PAUSED
            self._paused[request] = None

    def resume(self, request: Request) -> None:
        """Queues a paused request before all others."""
        if request.state == State.PAUSED:
            del self._paused[request]
            request.state = State.WAITING
            self._waiting.appendleft(request)

    @property
    def weights(self) -> EngineWeights:
        """The engine's own copy of the weights."""
        return self._weights

    def update_params(self, leaves: Leaves, version: int, donate: bool = False) -> None:
        """Continues with other weights of the same model; running requests recompute the cache of their tokens so far.

        Nothing in the cache outlives its weights, and every token records which version chose it. Arrays replace the
        old ones as they come, so that there never are two whole copies of the weights.

        Args:
            leaves: every weight once, by the names of ``params.named_specs``: whole, ``("moe/attention/q_b", array)``,
                or layer by layer, ``(("moe/attention/q_b", 3), array)``. ``weights.named_leaves`` makes them of a
                parameter tree. The arrays are of NumPy or JAX, on any devices; a generator may delete or overwrite each
                of them when it is asked for the next.
            version: number of the new weights.
            donate: gives the arrays away: the engine keeps those that need no cast and no move, without a copy. NumPy
                arrays must not be written again.

        Raises:
            UserError: a name or shape that is not the model's, or a missing weight. A sequence or mapping is checked
                before anything is replaced, and the old weights stay. Another iterable is checked as it is read: where
                a later array of it is wrong, or it raises, the engine has no whole set of weights, and generates
                nothing until an update is complete.
        """
        checked = self._weights.check(leaves)
        self._forget_cache()
        self._weights.update(checked, donate)
        self.version = version

    def release(self, weights: bool = True) -> None:
        """Frees the devices' memory: the cache and, unless told not to, the weights; requests wait for others."""
        self._forget_cache()
        self.programs.release(weights)

    def _forget_cache(self) -> None:
        for sequence in reversed(self._scheduler.running[:]):
            self._preempt(sequence, for_pages=False)
        self.drop_prefixes()

    def drop_prefixes(self) -> None:
        """Forgets the prefixes of finished sequences, and features of images.

        What follows does not depend on what was generated before.
        """
        self._scheduler.drop_prefixes()
        self.programs.features.clear()

    def generate(
        self,
        prompts: abc.Sequence[abc.Sequence[int]],
        sampling: Sampling | abc.Sequence[Sampling],
        media: abc.Sequence[abc.Sequence[PlacedChunk]] | None = None,
    ) -> list[Request]:
        """Runs requests to their ends, in the order given; ``media`` has the images of each prompt."""
        each = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        shown = [()] * len(prompts) if media is None else media
        requests = [self.submit(*pair, media=images) for *pair, images in zip(prompts, each, shown, strict=True)]
        while any(request.state != State.FINISHED for request in requests):
            self.step()
        return requests

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._weights.complete and bool(self._waiting or self._scheduler.running)

    @property
    def has_kept_programs(self) -> bool:
        """Whether former starts have kept programs for prompts and for generation, so that none need be compiled."""
        return self.programs.kept

    def stats(self) -> EngineStats:
        """Counters, cheap enough to ask for at any time."""
        counts = ("tokens_generated", "prompt_tokens", "prompt_tokens_cached", "steps", "preemptions")
        counts += ("decode_steps", "decode_tokens", "prefill_tokens")
        return EngineStats(
            slots=self.slots,
            running=len(self._scheduler.running),
            waiting=len(self._waiting),
            paused=len(self._paused),
            **{name: getattr(self._scheduler, name) for name in ("pages", "pages_in_use", "pages_cached")},
            images_computed=self.programs.features.computed,
            **{name: getattr(self, f"_{name}") for name in counts},
        )

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Admits what fits, runs one chunk of prompts, then some tokens of every sequence whose prompt is done.

        Raises:
            UserError: the last update of the weights did not come to its end.
        """
        if not self._weights.complete:
            raise UserError("the last update of the weights is incomplete; update_params has to be called again")
        self._steps += 1
        self._admit()
        prompts = [sequence for sequence in self._scheduler.running if sequence.pending > 1]
        if prompts:
            self._run(*self._prefill_batch(prompts))
        shown, text = by_media([sequence for sequence in self._scheduler.running if sequence.pending == 1], 1)
        self._run(self._with_room(shown, 1), 1)
        # The next chunk of a prompt waits for one token, not for several, and so does the mask of the next one.
        self._decode(text, 1 if any(s.pending > 1 or s.request.is_masked for s in self._scheduler.running) else STEPS)

    def _admit(self) -> None:
        while self._waiting and (sequence := self._scheduler.admit(self._waiting[0], self.version)) is not None:
            request = self._waiting.popleft()
            request.state = State.RUNNING
            if not request.admitted:
                request.admitted, request.cached_tokens = True, min(sequence.computed, len(request.prompt))
                self._prompt_tokens_cached += request.cached_tokens

    def _prefill_batch(self, prompts: list[Sequence]) -> tuple[list[Sequence], int]:
        """The oldest prompts, as many as one program takes at the width that suits the first of them.

        Prompts whose next ids are text alone never share a program with images.
        """
        width = shapes.prefill_width(prompts[0].pending)
        prompts = next(alike for alike in by_media(prompts, width) if prompts[0] in alike)
        rows = Counter()  # of each device
        oldest = []
        for sequence in prompts:
            rows[sequence.device] += 1
            if rows[sequence.device] <= max(1, shapes.PREFILL_TOKENS // width):
                oldest.append(sequence)
        return self._with_room(oldest, width), width

    def _with_room(self, sequences: list[Sequence], width: int) -> list[Sequence]:
        """Those that have pages for their next ``width`` ids; others may have to be preempted for them."""
        running = self._scheduler.running
        chosen = [
            sequence
            for sequence in sequences
            if sequence in running and self._scheduler.reserve(sequence, min(width, sequence.pending), self._preempt)
        ]
        return [sequence for sequence in chosen if sequence in running]

    def _preempt(self, sequence: Sequence, for_pages: bool = True) -> None:
        self._preemptions += for_pages  # which says that too many run; new weights put back however many there are
        self._release(sequence.request)
        sequence.request.state = State.WAITING
        self._waiting.appendleft(sequence.request)

    def _run(self, sequences: list[Sequence], width: int) -> None:
        """One program: the next ``width`` ids of each sequence, and a new token where these were its last."""
        if not sequences:
            return
        results, before = self.programs.run(sequences, width), self._tokens_generated
        self._take(results)
        if width == 1:
            self._decode_steps += 1
            self._decode_tokens += self._tokens_generated - before
        else:
            self._prefill_tokens += sum(result.count for result in results)

    def _decode(self, sequences: list[Sequence], steps: int) -> None:
        """One program: up to ``steps`` tokens of each sequence; those behind its end are dropped."""
        sequences = self._with_room(sequences, 1)
        limits = {sequence: min(steps, sequence.request.max_new_tokens(self.max_length)) for sequence in sequences}
        counts = {sequence: self._scheduler.extend(sequence, count) for sequence, count in limits.items()}
        before = self._tokens_generated
        for step, results in enumerate(self.programs.decode(counts) if counts else ()):
            # Where a constraint began to apply, what was drawn behind that without its mask is dropped.
            self._take([each for each in results if not (step and each.sequence.request.is_masked)])
            self._decode_steps += 1
        self._decode_tokens += self._tokens_generated - before

    def _take(self, results: list[RowResult]) -> None:
        for result in results:
            sequence = result.sequence
            if sequence.request.state != State.RUNNING:
                continue  # an earlier token was its last, or a callback has stopped it
            if result.scores is not None:
                score_prompt(sequence, result.scores, result.count)
            if result.experts is not None:
                sequence.add_experts(result.experts)
            sequence.computed += result.count
            self._scheduler.cache_prefix(sequence, self.version)
            if result.token is not None:
                self._append(result)

    def _append(self, result: RowResult) -> None:
        request = result.sequence.request
        if (reason := request.closed) is None:
            request.append(result.token, result.logprob, self.version, result.free_logprob)
            result.sequence.ids.append(result.token)
            self._tokens_generated += 1
            if request.sampling.top_logprobs:
                request.top_logprobs.append(top_pairs(*result.top)[: request.sampling.top_logprobs])
            reason = request.reached_end(self.max_length)
        if reason is not None:
            self._release(request)
            self._finish(request, reason)
        elif request.on_token is not None and request.on_token(request) and request.state == State.RUNNING:
            self._release(request)
            request.state, request.finish_reason = State.FINISHED, "stop"

    def _release(self, request: Request) -> None:
        """Removes a request from wherever it is and frees its pages."""
        self._paused.pop(request, None)
        if request.state == State.WAITING:
            self._waiting.remove(request)
        self._scheduler.release(request)

    def _finish(self, request: Request, reason: str) -> None:
        request.state, request.finish_reason = State.FINISHED, reason
        if request.on_token is not None:
            request.on_token(request)
