"""Blocks of arrays over several sources become the blocks that a process needs, and no row comes that none needs."""

import itertools
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import numpy as np

from k2jax.rl.broadcast.pieces import Manifest, Piece, StreamPlace, as_bytes, coming
from k2jax.rl.broadcast.shares import assembled, plan_of


class Sharded:
    """Weights of which this process's devices hold some blocks."""

    def __init__(self, arrays, places):
        self.arrays, self._places = arrays, places

    def check(self, leaves):
        assert {name: leaf.shape for name, leaf in leaves} == {n: a.shape for n, a in self.arrays.items()}

    def target(self, name):
        array = self.arrays[name]
        indices = {i: place for i, place in enumerate(self._places[name])}
        sharding = SimpleNamespace(is_fully_addressable=False, addressable_devices_indices_map=lambda shape: indices)
        return SimpleNamespace(shape=array.shape, dtype=array.dtype, sharding=sharding)


def cuts(draw, size):
    """A division of an axis."""
    inner = draw(st.sets(st.integers(1, max(1, size - 1)), max_size=3)) if size > 1 else set()
    edges = [0, *sorted(inner), size]
    return list(itertools.pairwise(edges))


@st.composite
def cases(draw):
    sources = draw(st.integers(1, 3))
    arrays, pieces, places = {}, [[] for _ in range(sources)], {}
    for number in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
        array = np.random.default_rng(number).integers(0, 100, shape).astype(np.int16)
        name = f"w{number}"
        arrays[name], sides = array, [cuts(draw, size) for size in shape]
        blocks = [()]
        for side in sides:
            blocks = [(*block, part) for block in blocks for part in side]
        for block in blocks:
            holders = draw(st.sets(st.integers(0, sources - 1), min_size=1))  # copies of a block lie with several
            for holder in holders:
                start, lengths = tuple(a for a, _ in block), tuple(b - a for a, b in block)
                pieces[holder].append(Piece(name, "int16", lengths, start, shape))
        mine = [cuts(draw, size) for size in shape]
        chosen = [tuple(slice(*draw(st.sampled_from(side))) for side in mine) for _ in range(draw(st.integers(1, 3)))]
        places[name] = chosen
    manifests = [Manifest(str(i), 1, tuple(each), draw(st.integers(1, 20))) for i, each in enumerate(pieces)]
    return arrays, manifests, places


def stream_of(manifest, spans, arrays, rows):
    """The chunks of a source, and the rows of them that came."""
    at = StreamPlace()
    while (chunk := coming(spans, manifest.chunk, at)) is not None:
        piece = manifest.pieces[chunk.piece]
        block = tuple(slice(first, first + size) for first, size in zip(piece.start, piece.shape, strict=True))
        data = as_bytes(np.ascontiguousarray(arrays[piece.name][block]))
        rows[piece.name] = rows.get(piece.name, 0) + chunk.bytes
        yield chunk, data[chunk.offset : chunk.offset + chunk.bytes]
        at = chunk.after


@given(cases())
@settings(max_examples=60, deadline=None)
def test_blocks_become_the_blocks_that_are_needed(case):
    arrays, manifests, places = case
    plan = plan_of(manifests, Sharded(arrays, places))
    rows = {}
    streams = {i: stream_of(manifests[i], spans, arrays, rows) for i, spans in enumerate(plan.spans) if spans}
    for array, memory in assembled(plan, streams):
        wanted = {tuple(part.indices(size)[:2] for part, size in zip(place, array.shape, strict=True)): place
                  for place in places[array.name]}  # fmt: skip
        assert memory.keys() == wanted.keys()
        for box, place in wanted.items():
            np.testing.assert_array_equal(memory[box], arrays[array.name][place])
        assert rows.get(array.name, 0) <= arrays[array.name].nbytes  # no block comes from two sources


def test_a_process_takes_its_experts_alone():
    experts = np.arange(8 * 6, dtype=np.int16).reshape(8, 6)
    whole = Manifest("a", 1, (Piece("w", "int16", (8, 6), (0, 0), (8, 6)),), 100)
    plan = plan_of([whole], Sharded({"w": experts}, {"w": [(slice(2, 4), slice(None)), (slice(6, 7), slice(None))]}))
    assert plan.spans == (((0, 24, 48), (0, 72, 84)),)
    assert jax.device_count() >= 1
