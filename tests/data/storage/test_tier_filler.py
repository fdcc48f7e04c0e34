"""The tier is filled ahead of a run: in its order, within bounds, each chunk once, and what fails is its reader's."""

import string
import threading
import time

import numpy as np
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data import RowSource, prepare_data, shards
from k2jax.data.blocks import BLOCK
from k2jax.data.conversation_rows import ConversationRows
from k2jax.data.filling import RowsPart
from k2jax.data.phases.block_rows import PhaseRows
from k2jax.data.storage import tier_filler
from k2jax.data.storage.tier_filler import TierFiller
from k2jax.data.stored_folder import upload
from k2jax.errors import UserError
from k2jax.files.objects import cached_reads
from k2jax.files.objects.object_path import ObjectPath
from tests.data.corpora import ListStream, data_config, equal, text_folder
from tests.refusal import refused

RUN = {"batch_size": 4, "seed": 0, "steps": 40}


class RecordedStream:
    """Every stretch takes two chunks; those that are named fail."""

    def __init__(self, failing=(), seconds=0.0):
        self.filled, self.steps, self.failing, self.seconds = [], [], set(failing), seconds

    def fill(self, start, stop):
        time.sleep(self.seconds)
        self.filled.append(start)
        if start in self.failing:
            self.failing.remove(start)
            raise UserError("the disk is full")
        return 2


def settled(seen, count):
    """Waits until so many are seen, and looks that no more come."""
    deadline = time.monotonic() + 5
    while len(seen) < count and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.03)
    assert len(seen) == count
    return seen


@pytest.fixture
def filler(monkeypatch):
    """Makes fillers with one thread over three stretches of every step, which are stopped at the end."""
    monkeypatch.setenv("K2JAX_STORE_REQUESTS", "2")
    made = []

    def make(stream, steps=range(1000)):
        looked_up = lambda step: stream.steps.append(step) or [(stream, 3 * step + n, 0) for n in range(3)]  # noqa: E731
        made.append(TierFiller(looked_up, steps))
        return made[-1]

    yield make
    for each in made:
        each.stop()
        each.join()


def test_steps_are_filled_in_their_order_so_far_ahead_and_no_further(filler, monkeypatch):
    monkeypatch.setattr(tier_filler, "STEPS_AHEAD", 4)
    stream = RecordedStream()
    ahead = filler(stream, range(5, 1000))
    assert settled(stream.filled, 12) == list(range(15, 27))
    ahead.advance()
    assert settled(stream.filled, 15) == list(range(15, 30))
    last = filler(end := RecordedStream(), range(998, 1000))
    last.join()  # its threads end with the run
    assert end.filled == list(range(2994, 3000))


def test_what_is_fetched_ahead_is_a_quarter_of_the_tier(filler, monkeypatch):
    monkeypatch.setenv("K2JAX_STORE_CACHE_GB", str(4 * 10 * cached_reads.CHUNK / 1e9))
    stream = RecordedStream()
    ahead = filler(stream)
    settled(stream.filled, 5)  # ten chunks
    ahead.advance()  # gives back those of three stretches
    settled(stream.filled, 8)


def test_steps_that_the_run_has_taken_are_left_out(filler):
    stream = RecordedStream(seconds=0.02)
    ahead = filler(stream)
    for _ in range(500):
        ahead.advance()
    settled_at = time.monotonic() + 5
    while not any(start >= 1500 for start in stream.filled) and time.monotonic() < settled_at:
        time.sleep(0.002)
    assert [start for start in stream.filled if 3 < start < 1497] == []
    assert [step for step in stream.steps if 64 < step < 499] == []


def test_behind_a_failure_nothing_is_fetched_until_the_run_is_a_step_further(filler):
    stream = RecordedStream(failing=[4])
    ahead = filler(stream, range(10))
    settled(stream.filled, 5)
    ahead.advance()
    assert settled(stream.filled, 30) == list(range(30))


@pytest.mark.parametrize("length", [5, 16])
def test_the_stretches_of_rows_are_what_is_read_for_them(length, monkeypatch):
    stream, read = ListStream([3, 5, 2, 5, 4, 1, 5] * 30), []
    real = stream.read
    monkeypatch.setattr(stream, "read", lambda start, stop: read.append((start, stop)) or real(start, stop))
    text = RowSource(stream, length)
    windows = [np.array([7, 2, 63]), np.array([2, 1])]
    for rows in (text, RowsPart(text), PhaseRows(stream, length, windows), ConversationRows(stream, length)):
        for index in range(0, len(rows), 3):
            read.clear()
            rows[index]
            assert rows.stretches(index) == read


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The shards of a corpus on the disk."""
    folder = tmp_path_factory.mktemp("built")
    texts = [letter * 20_000 for letter in string.ascii_letters]
    prepare_data(data_config(folder / "cache", {"s": text_folder(folder / "texts", texts)}), **RUN)
    [shards] = (folder / "cache" / "shards").iterdir()
    return shards


@pytest.fixture
def configs(tmp_path, built, store, monkeypatch):
    """The corpus in chunks of one block, on the disk and in a store, whose tier is cold; no reader asks ahead."""
    monkeypatch.setattr(cached_reads, "CHUNK", BLOCK)
    monkeypatch.setattr(cached_reads, "AHEAD", 0)
    monkeypatch.setattr(shards, "VERIFY_BELOW", 0)
    monkeypatch.setenv("K2JAX_STORE_REQUESTS", "4")
    upload(built, place := ObjectPath.parse(f"fake://b/shards/{built.name}"))
    store.asked.clear()
    store.together = 0
    sources = [{"s": SourceConfig(kind="shards", path=str(path))} for path in (built, place)]
    return [data_config(tmp_path, each) for each in sources]


def reads(store):
    return [each for each in store.asked if "/tokens-" in each]


def test_a_cold_run_asks_ahead_and_together_for_every_chunk_once(configs, store):
    local, stored = (prepare_data(config, **RUN).loader for config in configs)
    bounds = [bound for step in range(RUN["steps"]) for _, *bound in stored._read_by(step)]
    chunks = len({2 * token // BLOCK for start, stop in bounds for token in (start, stop - 1)})
    store.seconds = 0.01
    batches = stored.batches()
    deadline = time.monotonic() + 10
    while len(reads(store)) < chunks and time.monotonic() < deadline:
        time.sleep(0.01)
    ahead = reads(store)
    assert len(ahead) == len(set(ahead)) == chunks > 60
    assert 2 < store.together <= 4
    store.seconds = 0.0
    assert all(equal(a, b) for a, b in zip(batches, local.batches(), strict=True))
    assert reads(store) == ahead, "all was there before the run took its first batch"


def test_local_shards_and_the_end_of_an_iterator_leave_no_threads(configs, monkeypatch):
    def filling():
        return [thread for thread in threading.enumerate() if thread.name == "fill-tier"]

    local, stored = (prepare_data(config, **RUN).loader for config in configs)
    batches = local.batches()
    assert not filling()
    batches.close()
    batches = stored.batches()
    next(batches)
    batches.close()
    assert not filling()
    monkeypatch.setattr(tier_filler, "STEPS_AHEAD", 2)  # it waits for the run
    next(batches := stored.batches())
    assert filling()
    del batches
    deadline = time.monotonic() + 5
    while filling() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not filling()


def test_a_disk_without_room_ends_the_run_in_one_line_as_without_a_filler(configs, store, monkeypatch):
    stored = prepare_data(configs[1], **RUN).loader
    monkeypatch.setenv("K2JAX_STORE_CACHE_GB", "1e-6")
    with refused("a piece of .* bytes needs ten times its size"):
        list(stored.batches())
    assert len(reads(store)) < 12, "of 60 and more"
