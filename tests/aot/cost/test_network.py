"""Times on links worked out by hand: rings, lines, blocks, shared links, shortest ways."""

import itertools

import numpy as np
import pytest

from k2jax.aot.cost.network import Network
from k2jax.chips import CHIPS

V5P, V5E, TPU7X = CHIPS["v5p"], CHIPS["v5e"], CHIPS["tpu7x"]
LINK = 100e9


def network(chip, *sides, cores=1):
    """Devices numbered with the last side, then the core, fastest."""
    places = np.array([place for place in itertools.product(*map(range, sides)) for _ in range(cores)])
    return Network(chip, places, np.tile(np.arange(cores), len(places) // cores))


def along(*axes, sides):
    """Groups of devices that differ along these axes."""
    numbers = np.arange(np.prod(sides)).reshape(sides)
    rest = [axis for axis in range(len(sides)) if axis not in axes]
    return numbers.transpose([*rest, *axes]).reshape(-1, np.prod([sides[axis] for axis in axes])).tolist()


CUBE = (4, 4, 4)


def test_a_ring_takes_both_ways_a_line_one():
    cube, groups = network(V5P, *CUBE), along(2, sides=CUBE)
    assert cube.seconds("all-gather", groups, 1e9) == pytest.approx(3 / 4 * 1e9 / (2 * LINK))
    flat = (2, 4, 4)  # no whole cube, no ring
    assert network(V5P, *flat).seconds("all-gather", along(2, sides=flat), 1e9) == pytest.approx(3 / 4 * 1e9 / LINK)
    long = (16, 2, 1)
    pod = network(V5E, *long)
    assert pod.seconds("reduce-scatter", along(0, sides=long), 1e9) == pytest.approx(15 / 16 * 1e9 / (2 * 50e9))
    assert pod.seconds("reduce-scatter", along(1, sides=long), 1e9) == pytest.approx(1 / 2 * 1e9 / 50e9)


def test_more_dimensions_add_their_links_and_a_sum_goes_there_and_back():
    cube = network(V5P, *CUBE)
    gathered = cube.seconds("all-gather", along(0, 1, 2, sides=CUBE), 1e9)
    assert gathered == pytest.approx(63 / 64 * 1e9 / (6 * LINK))
    assert cube.seconds("all-reduce", along(0, 1, 2, sides=CUBE), 1e9) == pytest.approx(2 * gathered)
    assert cube.seconds("all-reduce", [[0], [1]], 1e9) == 0


def test_groups_that_interleave_share_links():
    long = (8, 4, 4)
    numbers = np.arange(128).reshape(long)
    apart = [numbers[start::2, y, z].tolist() for start in (0, 1) for y in range(4) for z in range(4)]
    assert network(V5P, *long).seconds("all-gather", apart, 1e9) == pytest.approx(3 / 4 * 1e9 / LINK)
    halves = [numbers[start : start + 4, y, z].tolist() for start in (0, 4) for y in range(4) for z in range(4)]
    assert network(V5P, *long).seconds("all-gather", halves, 1e9) == pytest.approx(3 / 4 * 1e9 / LINK)


def test_a_group_that_is_no_block_passes_its_data_round_one_ring():
    cube = network(V5P, *CUBE)
    corner = [[0, 1, 4]]  # an L: the hop back takes two links, none twice
    assert cube.seconds("all-gather", corner, 1e9) == pytest.approx(2 / 3 * 1e9 / LINK)


def test_an_exchange_loads_the_busiest_link():
    cube = network(V5P, *CUBE)
    # On a ring of 4, one link carries a quarter to the next device and half a quarter twice: n B / 8.
    assert cube.seconds("all-to-all", along(2, sides=CUBE), 1e9) == pytest.approx(4 / 8 * 1e9 / LINK)
    line = network(V5P, 1, 1, 4)  # the middle link: 2 x 2 pairs
    assert line.seconds("ragged-all-to-all", [[0, 1, 2, 3]], 1e9) == pytest.approx(4 / 4 * 1e9 / LINK)
    # Both dimensions of a plane carry all of it, one after the other; the busiest link has what one ring had.
    assert cube.seconds("all-to-all", along(1, 2, sides=CUBE), 1e9) == pytest.approx(4 / 8 * 1e9 / LINK)


def test_a_permute_goes_the_shortest_way():
    cube = network(V5P, *CUBE)
    neighbours = [pair for group in along(2, sides=CUBE) for pair in zip(group, [*group[1:], group[0]], strict=True)]
    assert cube.seconds("collective-permute", neighbours, 1e9) == pytest.approx(1e9 / LINK)
    line = network(V5P, 1, 1, 4)
    around = [(0, 1), (1, 2), (2, 3), (3, 0)]  # the way back passes every link the other way
    assert line.seconds("collective-permute", around, 1e9) == pytest.approx(1e9 / LINK)
    assert line.seconds("collective-permute", [(0, 2), (1, 3), (2, 2)], 1e9) == pytest.approx(2e9 / LINK)


def test_two_devices_of_a_chip_share_its_links_and_have_their_own():
    sides = (4, 4, 4)
    chips = network(TPU7X, *sides, cores=2)
    pairs = [[2 * chip, 2 * chip + 1] for chip in range(64)]
    assert chips.seconds("all-gather", pairs, 1e9) == pytest.approx(1 / 2 * 1e9 / 600e9)
    assert chips.seconds("collective-permute", [tuple(pair) for pair in pairs], 1e9) == pytest.approx(1e9 / 600e9)
    rings = [[2 * chip + core for chip in group] for group in along(2, sides=sides) for core in (0, 1)]
    assert chips.seconds("all-gather", rings, 1e9) == pytest.approx(3 / 4 * 1e9 / LINK)  # half of both ways each
    both = [[2 * chip + core for chip in group for core in (0, 1)] for group in along(2, sides=sides)]
    inside = 1 / 2 * 1e9 / 600e9
    assert chips.seconds("all-gather", both, 1e9) == pytest.approx(3 / 4 * 1e9 / (2 * LINK) + inside)
