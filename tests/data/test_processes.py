"""Work that several processes do in the order of its items, and what ends them."""

import itertools
import multiprocessing
import os
import time

import pytest

from k2jax.data.processes import ordered_map
from k2jax.errors import UserError
from tests.refusal import refused


def halves(number):
    if number % 40 == 0:
        time.sleep(0.05)  # a portion that is done after the next ones
    return number / 2, os.getpid()


def dies(number):
    os._exit(3)


def test_results_come_in_the_order_of_their_items_and_no_more_are_taken_than_are_near():
    taken = []
    items = (taken.append(number) or number for number in range(100_000))
    results = list(itertools.islice(ordered_map(halves, items, 2), 1000))
    assert [half for half, _ in results] == [number / 2 for number in range(1000)]
    assert len({process for _, process in results}) == 2 and os.getpid() not in {process for _, process in results}
    assert len(taken) < 2000


def test_a_process_that_dies_is_one_line():
    with refused("a process that prepares data died, of memory perhaps"):
        list(ordered_map(dies, range(3), 1))


def refuses_20(number):
    if number == 20:
        raise UserError("no twenty")
    return number


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_is_raised_after_the_results_before_it(workers):
    results = []
    with refused("no twenty"):
        results.extend(ordered_map(refuses_20, range(40), workers))
    # ``extend`` keeps what came before the error
    assert results == list(range(20))


def sleeps(number):
    time.sleep(0 if number < 8 else 60)
    return number


def test_processes_end_when_nobody_wants_the_rest():
    results = ordered_map(sleeps, range(1000), 2)
    assert next(results) == 0
    children = multiprocessing.active_children()
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 30
    assert children and not any(child.is_alive() for child in children)
