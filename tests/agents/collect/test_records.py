"""Frames, records and the probe of lateness."""

import asyncio
import gc
import time

from hypothesis import given
from hypothesis import strategies as st
import numpy as np

from k2jax.agents.collect import event_loop
from k2jax.agents.collect import wire_messages as engine
from k2jax.agents.collect.event_loop import LagProbe, end_all
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import LeaseOrder, LeaseReport, RecordPlace, StartedEnd, StartOrder
from k2jax.client import Sampling, new_completion

numbers = st.integers(0, 2**32 - 1)
places = st.builds(RecordPlace, st.integers(0, 2**31 - 1), st.integers(0, 2**60))
keys = st.tuples(*[st.integers(-(2**62), 2**62)] * 3)
seconds = st.floats(0, 1e6)
rewards = st.none() | st.floats(-1e9, 1e9)
statuses = st.sampled_from(["finished", "truncated", "masked", "unfinished"])


class Recorder:
    """A transport that only remembers."""

    def get_extra_info(self, name):
        return None  # it has no socket

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=6), st.integers(1, 17))
def test_frames_arrive_as_they_were_sent_however_the_bytes_are_divided(frames, part):
    async def exchange():
        transport, arrived = Recorder(), []
        sender = FrameConnection(lambda kind, body: None, lambda: None)
        sender.connection_made(transport)
        for kind, body in frames:
            sender.send(kind, body[:3], body[3:])
        await asyncio.sleep(0)
        receiver = FrameConnection(lambda kind, body: arrived.append((kind, body)), lambda: None)
        for begin in range(0, len(transport.data), part):
            receiver.data_received(transport.data[begin : begin + part])
        return arrived

    assert asyncio.run(exchange()) == frames


orders = st.builds(LeaseOrder, numbers, keys, numbers, st.none() | places, st.none() | st.integers(0, 2**31 - 1))
starts = st.builds(StartOrder, numbers, numbers, numbers)
started_ends = st.builds(StartedEnd, numbers, numbers, st.none() | places, st.text(max_size=5))


counts = dict.fromkeys(("number", "tokens", "turns", "calls"), numbers)
times = dict.fromkeys(("seconds", "engine", "environment", "scoring"), seconds)
reports = st.builds(LeaseReport, place=places, status=statuses, reward=rewards, **counts, **times)


@given(orders | starts | started_ends | reports)
def test_records_survive_the_wire(record):
    assert type(record).unpack(record.pack()) == record


@given(
    st.lists(st.integers(0, 2**31 - 1)),
    st.integers(0, 5),
    st.builds(Sampling, max_tokens=numbers, temperature=seconds, stop_tokens=st.tuples(numbers), seed=numbers),
    st.none() | st.tuples(st.integers(1, 3), st.integers(1, 4)),
)
def test_requests_and_completions_survive_the_wire(prompt, count, sampling, layers):
    experts = None if layers is None else np.arange(count * layers[0] * layers[1], dtype=np.int16)
    experts = None if layers is None else experts.reshape(count, *layers)
    completion = new_completion(range(count), [-0.5] * count, [7] * count, "cancelled", None, experts)
    number, arrived, same, resume, *_ = engine.unpack_request(engine.pack_request(3, prompt, sampling, completion))
    assert (number, arrived.tolist(), same, resume.finish) == (3, prompt, sampling, "cancelled")
    for ours, theirs in zip(completion[:3], resume[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert (resume.experts is None) == (experts is None)
    if experts is not None:
        np.testing.assert_array_equal(resume.experts, experts)


async def test_a_blocked_loop_is_seen_in_full_and_so_is_garbage_collection():
    async with LagProbe() as probe:
        await asyncio.sleep(0.05)
        begun = time.process_time()
        while time.process_time() - begun < 0.3:
            pass
        gc.collect()
        await asyncio.sleep(0.05)
        lag = probe.lag
    assert lag.maximum > 0.25 and 0.2 < lag.own_p99 <= lag.maximum
    assert lag.p50 > 0.05, "callbacks that fell due meanwhile waited too"
    assert lag.collections >= 1 and lag.collecting > 0


async def test_a_loop_that_only_waits_has_done_nothing_itself():
    async with LagProbe() as probe:
        await asyncio.sleep(0.05)
        time.sleep(0.3)
        await asyncio.sleep(0.05)
        lag = probe.lag
    assert lag.maximum > 0.25 and lag.own_p99 < 0.2


def test_a_task_that_loses_a_cancellation_is_cancelled_again_and_others_once(monkeypatch):
    monkeypatch.setattr(event_loop, "_ENDING", 0.05)
    cancelled = []

    async def works(name, losses):
        while True:
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                cancelled.append(name)
                if cancelled.count(name) > losses:
                    raise

    async def run():
        tasks = [asyncio.ensure_future(works(name, losses)) for name, losses in (("deaf", 2), ("good", 0))]
        await asyncio.sleep(0)
        await asyncio.wait_for(end_all(tasks), 5.0)
        assert all(task.cancelled() for task in tasks)
        await end_all(())

    asyncio.run(run())
    assert sorted(cancelled) == ["deaf", "deaf", "deaf", "good"]
