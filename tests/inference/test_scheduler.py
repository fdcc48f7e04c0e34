"""Which device a sequence goes to, and who makes room for whom."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.client import Sampling
from k2jax.inference.request import Request
from k2jax.inference.scheduler import Scheduler

PAGE = 4
PREFIX = tuple(range(16))  # four pages


def request(*own, prefix=PREFIX, **sampling):
    return Request((*prefix, *own), Sampling(**sampling))


def compute(slots, running, count=None):
    """As if a program had run."""
    assert slots.reserve(running, count or running.pending, lambda other: pytest.fail("nobody has to make room"))
    running.computed += count or running.pending
    slots.cache_prefix(running, version=0)


def test_a_known_prefix_draws_requests_to_its_device_until_that_is_busy():
    slots = Scheduler(devices=2, slots=8, pages=60, page_size=PAGE)
    first = slots.admit(request(90), 0)
    compute(slots, first)
    others = [slots.admit(request(i), 0) for i in range(3)]
    # A quarter of 8 slots may be filled in advance of the other device.
    assert [running.device for running in others[:2]] == [first.device] * 2
    assert [running.computed for running in others[:2]] == [16, 16]
    assert others[2].device == 1 - first.device and others[2].computed == 0
    assert slots.admit(request(3), 0).device == first.device
    assert slots.admit(request(80), 0) is None  # rather wait for the other than crowd this one
    compute(slots, others[2])
    assert slots.admit(request(80), 0).device == 1 - first.device


def test_a_prefix_that_is_being_computed_is_waited_for_only_where_every_device_computes_it():
    slots = Scheduler(devices=2, slots=8, pages=60, page_size=PAGE)
    one, two = slots.admit(request(90), 0), slots.admit(request(91), 0)
    assert {one.device, two.device} == {0, 1}
    assert slots.admit(request(92), 0) is None
    assert slots.admit(request(93, prompt_logprobs=True), 0) is not None  # it computes all of its prompt itself
    compute(slots, two)
    assert slots.admit(request(92), 0).device == two.device


def test_pages_of_other_weights_are_no_prefix():
    slots = Scheduler(devices=1, slots=8, pages=60, page_size=PAGE)
    compute(slots, slots.admit(request(90), 0))
    other = slots.admit(request(91), 1)
    assert other.computed == 0
    other.computed = len(other.ids) - 1
    assert slots.admit(request(92), 0).computed == 16
    slots.drop_prefixes()
    assert slots.admit(request(93), 0).computed == 0


def test_the_youngest_of_the_same_device_makes_room():
    slots = Scheduler(devices=2, slots=2, pages=6, page_size=PAGE)
    running = [slots.admit(request(i, prefix=(i,) * 11), 0) for i in range(4)]
    assert [one.device for one in running] == [0, 1, 0, 1]
    for one in running:
        compute(slots, one)
    gone = []

    def preempt(other):
        gone.append(other)
        slots.release(other.request)

    assert slots.reserve(running[0], 1, preempt)
    assert gone == [running[2]]
    assert slots.on(1) == [running[1], running[3]]
    assert not slots.reserve(running[3], 1, preempt)  # it is the youngest itself
    assert gone == [running[2], running[3]]


@given(st.data())
def test_pages_come_back_and_no_device_has_too_many(data):
    slots = Scheduler(devices=3, slots=2, pages=12, page_size=PAGE)
    live = []

    def preempt(other):
        live.remove(other)
        slots.release(other.request)

    for i in range(data.draw(st.integers(1, 30))):
        if data.draw(st.booleans()) or not live:
            prefix = PREFIX[: data.draw(st.integers(1, 16))]
            started = slots.admit(request(100 + i, prefix=prefix), 0)
            live += [started] if started else []
        else:
            one = data.draw(st.sampled_from(live))
            count = data.draw(st.integers(1, max(1, one.pending)))
            if one.pending and slots.reserve(one, count, preempt):
                one.computed += count
                slots.cache_prefix(one, 0)
            elif one in live:
                preempt(one)
        assert all(len(slots.on(device)) <= 2 for device in range(3))
        # A page is held once however many sequences share it.
        held = {(one.device, page) for one in live for page in one.pages}
        assert slots.pages_in_use == len(held)
    for one in list(live):
        preempt(one)
    assert slots.pages_in_use == 0 and not slots.running
