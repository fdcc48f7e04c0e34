"""Which sequences run on which device, and the pages of the cache that they hold there.

Every device of a mesh has slots and pages of its own, and reads no other device's: a sequence stays where it began, and
a prefix is found again on the device that computed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import itertools

from k2jax.inference.pages import Pages, digests
from k2jax.inference.request import Request

PREFIX_SLACK = 4  # a known prefix outweighs up to this part of a device's slots in difference of load


class Running:
    """A request with a slot.

    Attributes:
        request: what was asked for.
        device: number of the device in the mesh.
        pages: of that device, in order.
        ids: prompt and generated tokens.
        computed: how many of them are in the pages.
    """

    def __init__(self, request: Request, device: int, pages: list[int], computed: int):
        self.request, self.device, self.pages, self.computed = request, device, pages, computed
        self.ids = request.ids
        self.learnt = computed  # ids whose full pages are known

    @property
    def pending(self) -> int:
        """Ids that are not in the pages yet."""
        return len(self.ids) - self.computed


class Slots:
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
        self.running: list[Running] = []
        self._pages = [Pages(pages + 1, page_size) for _ in range(devices)]

    @property
    def pages(self) -> int:
        """Pages of all devices."""
        return sum(pages.total for pages in self._pages)

    @property
    def pages_in_use(self) -> int:
        """Pages that sequences hold."""
        return sum(pages.in_use for pages in self._pages)

    @property
    def pages_cached(self) -> int:
        """Pages without users that hold a prefix."""
        return sum(pages.cached for pages in self._pages)

    def on(self, device: int) -> list[Running]:
        """The sequences of one device, in the order in which they began."""
        return [running for running in self.running if running.device == device]

    def admit(self, request: Request, version: int) -> Running | None:
        """A slot with the longest known prefix, on a device that has room; None while there is none.

        Args:
            request: the request.
            version: of the weights: pages of others are not its prefix.
        """
        if len(self.running) == self.slots * len(self._pages):
            return None
        ids, reusable = request.ids, not request.sampling.prompt_logprobs
        wanted = list(self._digests(ids[:-1], version)) if reusable else []
        known = [pages.find(wanted) for pages in self._pages]
        at_leisure, busy = self._by_preference(known)
        # Waiting for a prefix is cheaper than computing it again, or than crowding the device that has it.
        coming = {device for device in at_leisure if reusable and self._prefix_is_coming(ids[:-1], device)}
        for device in [each for each in at_leisure if each not in coming] + ([] if coming else busy):
            running = self._start(request, device, known[device])
            if running is not None:
                self.running.append(running)
                return running
        return None

    def reserve(self, running: Running, new: int, put_back: Callable[[Running], None]) -> bool:
        """Pages for ``new`` more ids; where none are left the youngest of the device's sequences are put back.

        Returns:
            False where ``running`` itself was the youngest.
        """
        pages = self._pages[running.device]
        needed = -(-(running.computed + new) // self.page_size) - len(running.pages)
        while needed > pages.available:
            youngest = self.on(running.device)[-1]
            put_back(youngest)
            if youngest is running:
                return False
        running.pages.extend(pages.take() for _ in range(needed))
        return True

    def learn(self, running: Running, version: int) -> None:
        """Makes the pages that just became full known to later requests."""
        full, learnt = running.computed // self.page_size, running.learnt // self.page_size
        if full > learnt:
            known = self._digests(running.ids[: full * self.page_size], version)
            for page, digest in itertools.islice(zip(running.pages, known, strict=False), learnt, None):
                self._pages[running.device].learn(page, digest)
            running.learnt = full * self.page_size

    def take_away(self, request: Request) -> None:
        """Frees the slot and the pages of a request that has some."""
        for running in [running for running in self.running if running.request is request]:
            self.running.remove(running)
            for page in reversed(running.pages):  # the end of a prefix is forgotten before its beginning
                self._pages[running.device].release(page)

    def forget_prefixes(self) -> None:
        """Makes every prefix unknown, as when the weights change."""
        for pages in self._pages:
            pages.forget_all()

    def _digests(self, ids: Sequence[int], version: int) -> Iterator[bytes]:
        return digests(ids, self.page_size, version)

    def _by_preference(self, known: list[list[int]]) -> tuple[list[int], list[int]]:
        """Devices with a free slot, the longest prefix first: those with about the least to do, and the others."""
        load = [len(self.on(device)) for device in range(len(known))]
        enough = min(load) + self.slots // PREFIX_SLACK
        free = [device for device, count in enumerate(load) if count < self.slots]
        free.sort(key=lambda device: (-len(known[device]), load[device]))
        return [one for one in free if load[one] <= enough], [one for one in free if load[one] > enough]

    def _prefix_is_coming(self, ids: Sequence[int], device: int) -> bool:
        """Whether another sequence is computing pages of this one's prefix there."""
        return any(
            other.pending > 1 and other.computed < common_pages(ids, other.ids, self.page_size)
            for other in self.on(device)
        )

    def _start(self, request: Request, device: int, known: list[int]) -> Running | None:
        pages = self._pages[device]
        for page in known:
            pages.share(page)
        if pages.available < -(-len(request.ids) // self.page_size) - len(known) and self.on(device):
            for page in known:
                pages.release(page)
            return None
        return Running(request, device, known, len(known) * self.page_size)


def common_pages(a: Sequence[int], b: Sequence[int], size: int) -> int:
    """Leading ids that both have in common, in whole pages."""
    end = 0
    while len(a) >= end + size and a[end : end + size] == b[end : end + size]:
        end += size
    return end
