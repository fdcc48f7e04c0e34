"""Processes that do tasks: results in order, errors in their place, the dead replaced, nothing left running."""

import os
import threading
import time

import pytest

from k2jax.data.preparation.pools import ProcessPool
from k2jax.errors import UserError
from tests.refusal import refused


def squares(number):
    time.sleep(0.05 if number % 5 == 0 else 0)
    return number**2, os.getpid()


def refuses_twenty(number):
    if number == 20:
        raise UserError("no twenty")
    return number


def dies_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(9)
    return path


def dies(number):
    os._exit(9)


def sleeps(number):
    time.sleep(60 * (number > 3))
    return number


def imported(number):
    import sys

    return sorted({"jax", "grain", "pyarrow", "ray"} & set(sys.modules))


@pytest.fixture(scope="module")
def pool():
    pool = ProcessPool(2)
    yield pool
    pool.close()
    assert not [process for process in pool._processes if process._process.poll() is None]


def test_results_come_in_order_from_processes_without_jax(pool):
    results = list(pool.run(squares, range(40)))
    assert [square for square, _ in results] == [number**2 for number in range(40)]
    assert len({process for _, process in results} - {os.getpid()}) == 2
    assert list(pool.run(imported, range(2))) == [[], []]


def test_an_error_comes_behind_the_results_before_it(pool):
    results = []
    with refused("no twenty"):
        results.extend(pool.run(refuses_twenty, range(40)))
    assert results == list(range(20))


def test_a_task_whose_process_died_is_done_again_but_not_for_ever(pool, tmp_path):
    paths = [str(tmp_path / name) for name in "ab"]
    assert list(pool.run(dies_once, paths)) == paths
    with refused("3 processes died of one task that prepares data"):
        list(pool.run(dies, range(2)))


def test_what_nobody_wants_any_more_is_ended(pool):
    results, begin = pool.run(sleeps, range(50)), time.monotonic()
    assert next(results) == 0
    results.close()
    assert time.monotonic() - begin < 30
    assert [square for square, _ in pool.run(squares, [3, 4])] == [9, 16]


def test_results_may_be_asked_for_slowly_while_items_and_results_are_large(pool):
    blob = bytes(1 << 20)
    results = pool.run(len_and_blob, [blob] * 20)
    assert [next(results)[0] for _ in range(3)] == [1 << 20] * 3
    assert threading.active_count() < 40
    results.close()


def len_and_blob(blob):
    return len(blob), blob
