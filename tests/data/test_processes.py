"""Work that several processes do in the order of its items, and what ends them."""

import itertools
import os
import time

import pytest

from k2jax.data.processes import ordered_map
from k2jax.errors import UserError


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
    with pytest.raises(UserError, match="a process that prepares data died, of memory perhaps"):
        list(ordered_map(dies, range(3), 1))
