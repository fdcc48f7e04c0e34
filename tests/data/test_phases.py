"""The data of a run with phases: each reads what those before it have left, and batches are functions of the step."""

from collections import Counter
import dataclasses
import itertools

import numpy as np
import pytest

from k2jax.data import prepare_data
from k2jax.data.phases.block_rows import BlockRows, PhaseRows, block_starts
from k2jax.data.phases.phase_data import DataPhase, prepare_phases
from k2jax.data.phases.source_order import SourceOrder
from tests.data.corpora import ListStream, data_config, text_folder, words
from tests.refusal import refused

LENGTHS = [37, 11, 90, 4, 55, 23] * 40
STREAM = ListStream(LENGTHS)


def targets_of(rows):
    """How often each stream position is a target, over all rows; token values are positions plus one."""
    seen = Counter()
    for index in range(len(rows)):
        row = rows[index]
        seen.update((row.tokens[row.targets["weights"] > 0] - 1).tolist())
    return seen


def test_blocks_cover_a_source():
    for tokens in (2, 5, 63, 64, 1000, 8805, 2**22 * 70):
        starts = block_starts(tokens)
        assert starts[0] == 0 and starts[-1] == tokens and (np.diff(starts) > 0).all()
    assert len(block_starts(2**22 * 70 + 5)) == 71


@pytest.mark.parametrize("length", [8, 33, 200])
def test_every_target_of_a_block_is_one_exactly_once_but_where_blocks_meet(length):
    """A row may be longer than a block."""
    starts = block_starts(STREAM.tokens)
    blocks = np.random.default_rng(0).permutation(len(starts) - 1)
    seen = targets_of(BlockRows(STREAM, length, blocks))
    lost = set(range(STREAM.tokens)) - set(seen) - set(STREAM.offsets.tolist())
    assert set(seen.values()) == {1} and lost <= set(starts.tolist())


def test_phases_read_on_where_the_one_before_ended_whatever_the_length_of_their_rows():
    """Three phases of two lengths pass once over the source, and a fourth begins the second pass."""
    order, parts = SourceOrder(STREAM, 7), []
    for length, blocks in ((16, 20), (64, 30), (16, 14), (64, 5)):
        parts.append(targets_of(order.rows(blocks, length)))
        order.advance(blocks)
    once = parts[0] + parts[1] + parts[2]
    assert set(once.values()) == {1} and len(once) > 0.95 * STREAM.targets
    assert set(parts[3]) - set(once) <= set(block_starts(STREAM.tokens).tolist())


def test_a_phase_needs_the_blocks_that_hold_its_rows():
    for read, rows, length in itertools.product((0, 13, 63, 64), (1, 300, 2000), (16, 64)):
        order = SourceOrder(STREAM, 7)
        order.advance(read)
        blocks = order.needed(rows, length)
        assert len(order.rows(blocks, length)) >= rows
        assert blocks == 1 or len(order.rows(blocks - 1, length)) <= rows


def test_a_longer_phase_changes_the_order_of_its_last_window_alone():
    order = SourceOrder(STREAM, 7)
    order.advance(6)
    short, long = order.rows(21, 16).windows, order.rows(40, 16).windows
    assert len(short) < len(long) and all(len(of) <= 4 * 10 for of in long)
    for one, other in zip(short[:-1], long, strict=False):
        assert [one[i].tokens.tolist() for i in range(len(one))] == [
            other[i].tokens.tolist() for i in range(len(other))
        ]
    assert isinstance(order.rows(3, 16), PhaseRows)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases")
    sources = {name: text_folder(folder / name, words(400, seed)) for seed, name in enumerate("ab")}
    return data_config(folder / "cache", sources)


def three(config, steps=20, **changes):
    """Two lengths of rows, of which the second phase reads one source alone."""
    only = dataclasses.replace(config, sources={"b": config.sources["b"]})
    long = dataclasses.replace(config, sequence_length=64, **changes)
    sizes = [
        ("first", 0, steps, config, 4),
        ("alone", steps, steps + 10, only, 4),
        ("long", steps + 10, steps + 25, long, 2),
    ]
    return [
        DataPhase(name=name, first=first, last=last, config=own, batch_size=rows)
        for name, first, last, own, rows in sizes
    ]


def same(one, other):
    return all((getattr(one, key) == getattr(other, key)).all() for key in ("tokens", "positions", "parent", "exit"))


def test_batches_are_functions_of_the_step_of_the_run(config):
    data = prepare_phases(config, three(config), seed=3)
    loader = data[0].loader
    assert all(each.loader is loader for each in data)
    assert [loader.batch(step).tokens.shape for step in (0, 19, 20, 29, 30, 44)] == [(4, 16)] * 4 + [(2, 64)] * 2
    assert set(loader.sources(25)) == {"b"} and set(loader.sources(3)) | set(loader.sources(4)) == {"a", "b"}
    for start, count in ((17, 3), (20, 10), (41, 4)):
        batches = list(loader.batches(start))
        assert len(batches) == count
        assert all(same(batch, loader.batch(start + i)) for i, batch in enumerate(batches))
    again = prepare_phases(config, three(config), seed=3)[0].loader
    assert all(same(loader.batch(step), again.batch(step)) for step in (0, 19, 20, 44))
    assert not same(loader.batch(0), prepare_phases(config, three(config), seed=4)[0].loader.batch(0))


def test_a_process_reads_its_rows_of_every_phase(config):
    whole = prepare_phases(config, three(config), seed=3)[0].loader
    own = [dataclasses.replace(each, local_rows=[1]) for each in three(config)]
    part = prepare_phases(config, own, seed=3)[0].loader
    for step in (2, 25, 40):
        assert (part.batch(step).tokens == whole.batch(step).tokens[1:2]).all()


def test_nothing_is_read_twice_in_phases_that_take_less_than_a_pass(config):
    """Rows of 16 and of 64 tokens: documents are told by the numbers with which they begin."""
    data = prepare_phases(config, three(config), seed=3)
    begun, epochs = Counter(), data[0].loader.epochs(45)
    assert all(0.1 < passes < 1 for passes in epochs.values())
    for step in range(45):
        batch = data[0].loader.batch(step)
        starts = batch.tokens == data[0].tokenizer.bos
        for row, at in np.argwhere(starts):
            end = batch.exit[row, at]
            if end - at > 8:
                begun[data[0].tokenizer.decode(batch.tokens[row, at + 1 : at + 8].tolist()).split(" ")[0]] += 1
    assert len(begun) > 50 and max(begun.values()) == 1


def test_passes_are_counted_over_all_phases(config):
    data = prepare_phases(config, three(config), seed=3)[0]
    tokens = {name: manifest["splits"]["train"]["tokens"] for name, manifest in data.manifests.items()}
    drawn: Counter[str] = Counter()
    for step in range(45):
        if step in (0, 1, 20, 27):
            passes = {name: drawn[name] / count for name, count in tokens.items()}
            assert data.loader.epochs(step) == pytest.approx(passes, abs=0.02), step
        stride = (16 if step < 30 else 64) - 1
        drawn.update({name: rows * stride for name, rows in Counter(data.loader.sources(step)).items()})
    assert data.loader.epochs(45) == pytest.approx(
        {name: drawn[name] / count for name, count in tokens.items()}, abs=0.02
    )


def test_a_limit_of_passes_is_one_of_the_run(config):
    """What the first phase has used up is not read by the others, whose share goes to the other source."""
    limited = {
        name: dataclasses.replace(each, max_epochs=0.5 if name == "a" else 0.0) for name, each in config.sources.items()
    }
    config = dataclasses.replace(config, sources=limited)
    loader = prepare_phases(config, three(config, steps=200), seed=3)[0].loader
    assert 0.45 < loader.epochs(200)["a"] <= 0.52
    assert loader.epochs(225)["a"] == loader.epochs(200)["a"] and set(loader.sources(220)) == {"b"}
    alone = dataclasses.replace(config, sources={"a": limited["a"]})
    phases = [dataclasses.replace(each, config=alone) for each in three(config, steps=40)]
    with refused("in phase (first|alone|long): .*max_epochs"):
        prepare_phases(config, [*phases, dataclasses.replace(phases[2], first=65, last=900)], seed=3)


def test_held_out_rows_are_of_all_sources_and_as_long_as_the_phase(config):
    data = prepare_phases(config, three(config), seed=3)
    lengths = [next(iter(each.held_out.batches(4))).tokens.shape for each in data]
    assert lengths == [(4, 16), (4, 16), (4, 64)] and all(each.held_out.names == ["a", "b"] for each in data)
    assert data[0].fingerprint == prepare_data(config, batch_size=4, seed=3, steps=3).fingerprint
