"""Callers on other threads get their answers, and nobody waits for an engine that has died."""

import queue
import threading
import time

import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference.request import State
from k2jax.inference.worker import Worker
from tests.inference.tiny import engine, prompts


@pytest.fixture
def worker():
    worker = Worker(engine())
    yield worker
    worker.stop()


def test_an_error_in_a_call_is_the_caller_s(worker):
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda engine: 1 / 0)
    with pytest.raises(UserError):
        worker.submit([], Sampling())
    assert worker.failed is None


def test_an_error_in_the_engine_ends_everything_and_is_told():
    worker, both = Worker(engine()), threading.Event()

    def explode(request):
        both.wait(60)
        raise ArithmeticError("boom")

    requests = [
        worker.submit(prompts(5)[0], Sampling(max_tokens=50), on_token=on_token) for on_token in (explode, None)
    ]
    both.set()
    worker._thread.join(timeout=60)
    assert isinstance(worker.failed, ArithmeticError)
    assert {request.finish_reason for request in requests} == {"cancelled"}
    assert worker.stats().pages_in_use == 0
    with pytest.raises(RuntimeError):
        worker.submit([1], Sampling())
    with pytest.raises(RuntimeError):
        worker.call(lambda engine: None)
    worker.cancel(requests[0])  # says nothing, there is nothing left
    worker.stop()


def test_a_step_of_few_sequences_waits_for_more_or_for_some_time():
    """Four were ready lately: one waits, two are enough, and one is not left alone for ever."""
    worker, sampling = Worker(engine(slots=4), rest=2000.0), Sampling(max_tokens=3, temperature=0.0)
    done = queue.SimpleQueue()

    def submit(count):
        return [worker.submit(prompt, sampling, on_token=done.put) for prompt in prompts(*[5] * count)]

    def finish(requests):
        while any(request.state != State.FINISHED for request in requests):
            done.get(timeout=60)

    worker._step_seconds = worker._rest = 0.0
    finish(submit(4))
    worker._step_seconds, worker._rest = 60.0, 2000.0
    first = submit(1)
    time.sleep(0.05)
    assert not first[0].tokens
    finish([*first, *submit(1)])
    worker._step_seconds, worker._rest = 0.02, 1.0
    finish(submit(1))
    worker.stop()
