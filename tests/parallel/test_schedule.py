"""Schedules: every micro-batch once per chunk, in order, on the right stage; the bubble and live activations."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.parallel.schedule import build_pipeline_schedule, cut


@st.composite
def numbers(draw):
    """Stages, rounds, chunks and micro-batches of a pipeline."""
    stages, rounds = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    chunks = draw(st.integers(max(stages, stages * (rounds - 1) + 1), stages * rounds))
    return stages, rounds, chunks, draw(st.integers(1, 11))


@settings(max_examples=60)
@given(numbers())
def test_every_micro_batch_passes_every_chunk_once_and_in_order(sizes):
    stages, _, chunks, micro_batches = sizes
    found = build_pipeline_schedule(*sizes)
    times = {direction: {} for direction in ("forward", "backward")}
    for direction, seen in times.items():
        for tick, stage in np.argwhere(found.table[direction] >= 0):
            chunk = int(found.table[f"{direction}_round"][tick, stage]) * stages + int(stage)
            key = int(found.table[direction][tick, stage]), chunk
            assert key not in seen
            seen[key] = int(tick)
        assert set(seen) == {(m, c) for m in range(micro_batches) for c in range(chunks)}
    forward, backward = times["forward"], times["backward"]
    for m, c in forward:
        if c:
            assert forward[m, c] == forward[m, c - 1] + 1 and backward[m, c] == backward[m, c - 1] - 1
    for m in range(micro_batches):
        (losses,), (embeds,), (embed_backwards,) = (
            np.flatnonzero(column == m) for column in (found.loss, found.embed, found.embed_backward)
        )
        assert losses == forward[m, chunks - 1] + 1 <= backward[m, chunks - 1]
        assert embeds == forward[m, 0] and embed_backwards == backward[m, 0]


@settings(max_examples=60)
@given(numbers())
def test_playing_a_table_brings_every_value_where_it_is_needed(sizes):
    """A replay with names in place of activations: slots are written before they are read and never overwritten."""
    stages, chunks = sizes[0], sizes[2]
    found = build_pipeline_schedule(*sizes)
    row = lambda name, tick, stage: int(found.table[name][tick, stage])  # noqa: E731
    inputs = [{} for _ in range(stages)]
    cotangents = [{} for _ in range(stages)]
    sent, returned = {}, {}
    most = 0
    for tick in range(found.ticks):
        sending, returning = {}, {}
        for stage in range(stages):
            if (slot := row("arrival_slot", tick, stage)) >= 0:
                inputs[stage][slot] = sent[stage]
            if (slot := row("cotangent_arrival_slot", tick, stage)) >= 0:
                cotangents[stage][slot] = returned[stage]
            if (slot := row("loss_slot", tick, stage)) >= 0:
                cotangents[stage][slot] = (int(found.loss[tick]), chunks)
            if (m := row("forward", tick, stage)) >= 0:
                c, slot = row("forward_round", tick, stage) * stages + stage, row("forward_slot", tick, stage)
                if c == 0:
                    inputs[stage][slot] = (m, 0)
                assert inputs[stage][slot] == (m, c)
                sending[(stage + 1) % stages] = (m, c + 1)
            if (m := row("backward", tick, stage)) >= 0:
                c = row("backward_round", tick, stage) * stages + stage
                assert inputs[stage].pop(row("backward_slot", tick, stage)) == (m, c)
                assert cotangents[stage].pop(row("cotangent_slot", tick, stage)) == (m, c + 1)
                returning[(stage - 1) % stages] = (m, c)
            most = max(most, len(inputs[stage]))
        sent, returned = sending, returning
    assert not any(inputs) and not any(cotangents)
    assert most <= found.slots <= most + 1  # a backward frees its slot at the end of its tick


@pytest.mark.parametrize(("stages", "rounds", "micro_batches"), [(2, 1, 4), (4, 1, 16), (4, 2, 16), (8, 3, 32)])
def test_the_bubble_is_the_formula_and_live_activations_are_bounded_by_stages(stages, rounds, micro_batches):
    found = build_pipeline_schedule(stages, rounds, stages * rounds, micro_batches)
    assert found.bubble() == pytest.approx((stages - 1) / (micro_batches * rounds + stages - 1))
    assert found.slots <= stages * (rounds + 1)
    many = build_pipeline_schedule(stages, rounds, stages * rounds, 4 * micro_batches)
    assert many.slots == found.slots  # whatever the number of micro-batches


def test_kimi_k2_on_sixteen_stages():
    size, chunks = cut(60, 16, 4)
    found = build_pipeline_schedule(16, 4, chunks, 256)
    assert (size, chunks) == (1, 60)
    assert (found.table["forward_round"][:, 12:] == 3).sum() == 0  # the four empty slots are never run
    assert found.bubble() == pytest.approx(1 - 60 / 64 * (256 * 4) / (256 * 4 + 11), abs=1e-3)


def test_numbers_that_are_no_pipeline_are_refused():
    assert cut(60, 16, 1) is None and cut(60, 16, 2) == (2, 30) and cut(26, 4, 4) == (2, 13)
    with pytest.raises(ValueError, match="do not lie on"):
        build_pipeline_schedule(4, 1, 3, 8)
