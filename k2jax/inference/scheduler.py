"""Which sequences run on which device, and the pages of the cache that they hold there.

Every device of a mesh has slots and pages of its own and reads no other device's pages: a sequence stays on the device
where it began, and a prefix can be reused on the device that computed it.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable

import numpy as np

from k2jax.inference.media import PlacedChunk, content_of, within
from k2jax.inference.page_pool import PagePool, digests
from k2jax.inference.request import Request

PREFIX_SLACK = 4  # a known prefix outweighs up to this part of a device's slots in difference of load


class Sequence:
    """A request with a slot.

    Attributes:
        request: what was asked for.
        device: number of the device in the mesh.
        pages: of that device, in order.
        ids: prompt and generated tokens.
        computed: number of ids that are in the pages.
        experts: int16 ``[capacity, expert layers, active experts]`` of the computed ids, where they are wanted.
    """

    def __init__(self, request: Request, device: int, pages: list[int], computed: int):
        self.request, self.device, self.pages, self.computed = request, device, pages, computed
        self.ids = request.ids
        self.cached = computed  # ids whose full pages are known
        self.last_digest: bytes | None = None  # of the last of these pages
        self.experts: np.ndarray | None = None

    @property
    def pending(self) -> int:
        """Number of ids that are not in the pages yet."""
        return len(self.ids) - self.computed

    def reads_media(self, width: int) -> bool:
        """Whether images stand for some of its next ``width`` ids."""
        end = self.computed + min(width, self.pending)
        return bool(self.request.media) and any(within(self.request.media, self.computed, end))

    def add_experts(self, experts: np.ndarray) -> None:
        """Takes the experts ``[N, expert layers, active experts]`` of the next N ids, before they count as computed."""
        end = self.computed + len(experts)
        if self.experts is None or end > len(self.experts):
            grown = np.empty((max(end, 2 * self.computed, 64), *experts.shape[1:]), np.int16)
            if self.experts is not None:
                grown[: self.computed] = self.experts[: self.computed]
            self.experts = grown
        self.experts[self.computed : end] = experts


class Scheduler:
    """The running sequences of all devices.

    Args:
        devices: how many there are.
        slots: sequences that run at a time on each.
        pages: of the cache, on each, without the scratch page.
        page_size: tokens in a page.

    Attributes:
        running: in the order in which they began.
    """

    def __init__(self, devices: int, slots: int, pages: int, page_size: int):
        self.slots, self.page_size = slots, page_size
        self.running: list[Sequence] = []
        self._pools = [PagePool(pages + 1, page_size) for _ in range(devices)]

    @property
    def pages(self) -> int:
        """Pages of all devices."""
        return sum(pool.total for pool in self._pools)

    @property
    def pages_in_use(self) -> int:
        """Pages that sequences hold."""
        return sum(pool.in_use for pool in self._pools)

    @property
    def pages_cached(self) -> int:
        """Pages without users that hold a prefix."""
        return sum(pool.cached for pool in self._pools)

    def on(self, device: int) -> list[Sequence]:
        """The sequences of one device, in the order in which they began."""
        return [sequence for sequence in self.running if sequence.device == device]

    def admit(self, request: Request, version: int) -> Sequence | None:
        """Gives a request a slot and the longest known prefix, on a device that has room; None while none has.

        Args:
            request: the request.
            version: of the weights: pages that other weights computed are not its prefix.
        """
        if len(self.running) == self.slots * len(self._pools):
            return None
        known = request.ids[: request.reusable]
        page_digests = list(digests(known, self.page_size, version, request.media))
        prefixes = [pool.find(page_digests, request.sampling.return_experts) for pool in self._pools]
        idle, busy = self._by_preference(prefixes)
        # Waiting for a prefix is cheaper than computing it again, or than crowding the device that has it.
        coming = {device for device in idle if self._prefix_is_coming(request, known, device)}
        for device in [device for device in idle if device not in coming] + ([] if coming else busy):
            sequence = self._start(request, device, prefixes[device])
            if sequence is not None:
                self.running.append(sequence)
                return sequence
        return None

    def reserve(self, sequence: Sequence, new: int, preempt: Callable[[Sequence], None]) -> bool:
        """Takes pages for ``new`` more ids; where too few are left, the device's youngest sequences are preempted.

        Returns:
            False where ``sequence`` itself was the youngest.
        """
        pool = self._pools[sequence.device]
        needed = -(-(sequence.computed + new) // self.page_size) - len(sequence.pages)
        while needed > pool.available:
            youngest = self.on(sequence.device)[-1]
            preempt(youngest)
            if youngest is sequence:
                return False
        sequence.pages.extend(pool.take() for _ in range(needed))
        return True

    def extend(self, sequence: Sequence, new: int) -> int:
        """Takes pages for up to ``new`` more ids, of those that nobody holds; returns for how many it has pages now."""
        pool = self._pools[sequence.device]
        needed = -(-(sequence.computed + new) // self.page_size) - len(sequence.pages)
        sequence.pages.extend(pool.take() for _ in range(min(needed, pool.available)))
        return min(new, len(sequence.pages) * self.page_size - sequence.computed)

    def cache_prefix(self, sequence: Sequence, version: int) -> None:
        """Makes the pages that just became full known to later requests."""
        size = self.page_size
        full, cached = sequence.computed // size, sequence.cached // size
        if full > cached:
            # From where the last page ended: a long sequence is not read again for each of its pages.
            going_on = {"first": cached, "before": sequence.last_digest}
            new = digests(sequence.ids, size, version, sequence.request.media, **going_on)
            for i, digest in zip(range(cached, full), new, strict=False):
                experts = None if sequence.experts is None else sequence.experts[i * size : (i + 1) * size].copy()
                self._pools[sequence.device].cache_prefix(sequence.pages[i], digest, experts)
                sequence.last_digest = digest
            sequence.cached = full * size

    def release(self, request: Request) -> None:
        """Frees the slot and the pages of a request that has some; the request keeps its experts."""
        for sequence in [sequence for sequence in self.running if sequence.request is request]:
            self.running.remove(sequence)
            if sequence.experts is not None:
                kept = np.empty((0, *sequence.experts.shape[1:]), np.int16)
                kept = kept if request.experts is None else request.experts
                request.experts = np.concatenate([kept, sequence.experts[len(kept) : sequence.computed]])
            for page in reversed(sequence.pages):  # the end of a prefix is dropped before its beginning
                self._pools[sequence.device].release(page)

    def drop_prefixes(self) -> None:
        """Drops every prefix, as when the weights change."""
        for pool in self._pools:
            pool.drop_all()

    def _by_preference(self, prefixes: list[list[int]]) -> tuple[list[int], list[int]]:
        """Devices with a free slot, the longest prefix first: those with about the least load, and the others."""
        load = [len(self.on(device)) for device in range(len(prefixes))]
        enough = min(load) + self.slots // PREFIX_SLACK
        free = [device for device, count in enumerate(load) if count < self.slots]
        free.sort(key=lambda device: (-len(prefixes[device]), load[device]))
        return [device for device in free if load[device] <= enough], [
            device for device in free if load[device] > enough
        ]

    def _prefix_is_coming(self, request: Request, ids: abc.Sequence[int], device: int) -> bool:
        """Whether another sequence on the device is computing pages that the request can reuse."""
        return any(
            other.pending > 1
            and other.request.sampling.return_experts >= request.sampling.return_experts
            and other.computed < common_pages((ids, request.media), (other.ids, other.request.media), self.page_size)
            for other in self.on(device)
        )

    def _start(self, request: Request, device: int, prefix: list[int]) -> Sequence | None:
        pool = self._pools[device]
        for page in prefix:
            pool.share(page)
        if pool.available < -(-len(request.ids) // self.page_size) - len(prefix) and self.on(device):
            for page in prefix:
                pool.release(page)
            return None
        sequence = Sequence(request, device, prefix, len(prefix) * self.page_size)
        if prefix:
            sequence.last_digest = pool.digest(prefix[-1])
        if request.sampling.return_experts and prefix:
            sequence.experts = np.concatenate([pool.experts(page) for page in prefix])
        return sequence


Prompt = tuple[abc.Sequence[int], abc.Sequence[PlacedChunk]]
"""Ids, and the images that stand for some of them."""


def common_pages(a: Prompt, b: Prompt, size: int) -> int:
    """Leading ids that both have in common, images by their content, in whole pages."""
    (ids, media), (other_ids, other_media) = a, b
    end = 0
    while len(ids) >= end + size and ids[end : end + size] == other_ids[end : end + size]:
        if content_of(media, end, end + size) != content_of(other_media, end, end + size):
            break
        end += size
    return end


def by_media(sequences: list[Sequence], width: int) -> tuple[list[Sequence], list[Sequence]]:
    """Sequences among whose next ``width`` ids are images, and those that read text alone."""
    shown = [sequence for sequence in sequences if sequence.reads_media(width)]
    return shown, [sequence for sequence in sequences if sequence not in shown]
