"""Corpora of K2's size: hosts, resumes, what is read, memory and threads."""

import collections
import itertools
import pickle
import time
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.bench import loader as bench
from k2jax.bench.loader_process import opened, row_digests
from k2jax.data import shards
from k2jax.data.batch_preview import pieces_of, use_of
from k2jax.data.paged.array import FENCES, PAGE, PAGES
from k2jax.data.shards import open_shards
from k2jax.data.synthetic.folders import open_corpus, source_groups, synthetic_files, write_corpus, write_source
from k2jax.data.synthetic.linear_sums import linear_sums
from k2jax.data.synthetic.virtual_files import TOKENS, VirtualSplit
from k2jax.data.training_data import TrainingData
from tests.data.corpora import equal
from tests.refusal import refused

ROWS = 3_800_000_000


@settings(max_examples=30)
@given(st.binary(min_size=8, max_size=40), st.integers(0, 2**8 - 1), st.data())
def test_sums_of_pages_are_those_of_their_bytes(base, number, data):
    masks = [data.draw(st.binary(min_size=len(base), max_size=len(base))) for _ in range(8)]
    page = np.frombuffer(base, np.uint8).copy()
    for bit in range(8):
        if number >> bit & 1:
            page ^= np.frombuffer(masks[bit], np.uint8)
    assert linear_sums(base, masks, np.array([number, 0])).tolist() == [zlib.crc32(page), zlib.crc32(base)]


def test_computed_files_have_the_sums_that_their_tables_say():
    split = VirtualSplit(17, 5)
    tables, place = split.tables(), 0
    for name in ("offsets.npy", "bytes.npy", "blocks.npy"):
        file = split.open(name)
        for start in range(0, file.size, PAGE):
            assert tables[PAGES][place] == zlib.crc32(file.read(start, min(start + PAGE, file.size)))
            place += 1
        content = file.read(0, file.size)
        assert file.read(100, 9_001) == content[100:9_001] and file.read(70_003, 70_004) == content[70_003:70_004]
    assert place == len(tables[PAGES]) and len(tables[FENCES]) == 18


@pytest.mark.parametrize("groups", [1, 200])
def test_a_synthetic_folder_is_opened_and_checked_by_the_code_for_real_ones(tmp_path, groups, monkeypatch):
    files = synthetic_files(groups, 3)
    write_source(tmp_path / "s", files)
    monkeypatch.setattr(shards, "VERIFY_BELOW", 0)
    train = open_shards(tmp_path / "s", files).train
    places = [0, train.tokens // 3, train.tokens - 5000]
    for start in places:
        assert np.array_equal(train.read(start, start + 5000), files.splits["train"].values(start + np.arange(5000)))
        found = train.offsets.between(start, start + 5000)
        documents = np.searchsorted(files.splits["train"]._starts, found % TOKENS)
        assert np.array_equal(files.splits["train"]._starts[documents], found % TOKENS) and 1 <= len(found) < 20
    values = files.splits["train"].values
    monkeypatch.setattr(files.splits["train"], "values", lambda places: values(places) ^ (places % 5000 == 7))
    with refused(r"train/tokens-\d+\.bin is altered"):
        train.read(places[1] + 50_000, places[1] + 60_000)


GROUPS = [60, 90, 130]  # 2.3 GB of tokens each at least, 1.1 million documents in all
FIELDS = {"batch_size": 8, "steps": 500}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three sources with 573,000 rows."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, GROUPS)
    return folder


def test_hosts_share_the_batch_of_one_and_a_resume_begins_with_the_same(folder):
    whole, _ = opened(folder, GROUPS, **FIELDS)
    batches = whole.batches(300)
    expected = [row_digests(next(batches)) for _ in range(2)]
    assert len({digest for batch in expected for digest in batch}) == 16
    for hosts in (4, 8):
        found = [[], []]
        for host in range(hosts):
            local = range(host * 8 // hosts, (host + 1) * 8 // hosts)
            part, _ = opened(folder, GROUPS, local_rows=local, **FIELDS)
            for rows, step in zip(found, (300, 301), strict=True):
                rows += row_digests(part.batch(step))
        assert found == expected
    assert equal(whole.rows(300, [5, 2]), chosen_rows(whole.batch(300), [5, 2]))
    sent = pickle.dumps(whole)  # as to a process that reads
    assert len(sent) < 2**20 and row_digests(pickle.loads(sent).batch(300)) == expected[0]
    assert collections.Counter(whole.sources(300)) == {"source-00": 2, "source-01": 2, "source-02": 4}


def chosen_rows(batch, numbers):
    return batch.replace(
        **{name: getattr(batch, name)[numbers] for name in ("tokens", "positions", "exit", "parent")},
        targets={"weights": batch.targets["weights"][numbers]},
    )


def test_what_is_read_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    """At opening the tables, and for a row a page of offsets, a page of checksums and the blocks of its tokens."""
    read = {}
    for groups in (60, 6000):
        counts, files = [], synthetic_files(groups, 1)
        write_source(tmp_path / str(groups), files)

        def counted(path, files=files, counts=counts, opened=files.open):
            file = opened(path)
            if path.name in (PAGES, FENCES):
                return file
            return type("Counted", (), {
                "size": file.size, "read": lambda _, *ends: (counts.append(ends[1] - ends[0]), file.read(*ends))[1],
            })()  # fmt: skip

        monkeypatch.setattr(files, "open", counted)
        rows = shards.open_shards(tmp_path / str(groups), files).train
        before = sum(counts)
        for start in range(10_000, 100_000, 10_000):
            rows.read(start, start + 4096)
            rows.offsets.between(start, start + 4096)
        read[groups] = before, sum(counts) - before
    assert read[6000] == read[60] and read[60][0] < 20 * PAGE and read[60][1] < 9 * (2 * PAGE + 3 * 16384)


class Spelled:
    """A tokenizer whose text are the ids."""

    def decode(self, ids):
        return " ".join(map(str, ids))


def preview(folder, groups, step, batch_size):
    """What ``show --batch`` prints of a step, and what it saw of every source."""
    loader, held_out = opened(folder, groups, batch_size=batch_size, steps=step)
    manifests = {name: source.manifest for name, source in open_corpus(folder, groups).items()}
    data = TrainingData(Spelled(), loader, held_out, manifests, "")
    begun = time.process_time()
    return list(pieces_of(data, step, range(32))), use_of(data, step), time.process_time() - begun


def test_a_step_is_shown_without_the_rest_of_it(folder):
    pieces, used, _ = preview(folder, GROUPS, 30, 16_384)  # as large a step as K2's: a gigabyte, were it read
    assert {piece.row for piece in pieces} == set(range(32))
    assert sum(piece.end - piece.begin for piece in pieces) == 32 * 4096
    assert sum(use.rows for use in used) == 16_384
    rows = [use.passes * groups * TOKENS / 4095 for use, groups in zip(used, GROUPS, strict=True)]
    assert sum(rows) == pytest.approx(30 * 16_384, rel=1e-3)
    assert [use.tokens for use in used] == pytest.approx([4095 * count for count in rows], rel=1e-3)


@pytest.mark.slow
def test_the_loader_of_3_8_billion_rows_begins_at_once_and_takes_little_memory(tmp_path):
    """Processor seconds: what the clock says on a shared machine depends on who shares it."""
    groups = source_groups(ROWS, 50, 4096)
    assert len(groups) == 50 and sum(groups) * TOKENS / 4095 >= ROWS and max(groups) < 4 * min(groups)
    write_corpus(tmp_path / "large", groups)
    write_corpus(tmp_path / "small", [40] * 50)
    pieces, used, seconds = preview(tmp_path / "large", groups, 230_000, 16_384)  # nearly K2's last step
    assert len(pieces) > 100 and len(used) == 50 and seconds < 3
    assert sum(use.tokens for use in used) == pytest.approx(230_000 * 16_384 * 4095, rel=1e-3)
    steps = {"step": 31_415_926, "steps": 50_000_000}
    whole = bench.run_host(tmp_path / "large", groups, batches=3, **steps)
    small = bench.run_host(tmp_path / "small", [40] * 50, step=1000, steps=2000)
    assert whole["processor"] < 10 and whole["memory"] < 2**30 and whole["threads"] < 40 and whole["files"] < 300
    assert whole["memory"] - small["memory"] < 200 * 2**20
    resumed = bench.run_host(tmp_path / "large", groups, batches=1, step=31_415_928, steps=50_000_000)
    assert resumed["rows"] == whole["rows"][2:]
    for hosts in (4, 8):
        parts = [bench.run_host(tmp_path / "large", groups, host=h, hosts=hosts, **steps) for h in range(hosts)]
        joined = [list(itertools.chain(*rows)) for rows in zip(*(part["rows"] for part in parts), strict=True)]
        assert joined == whole["rows"]
        assert all(part["processor"] < 10 and part["memory"] < 2**30 and part["threads"] < 40 for part in parts)


def test_sources_of_a_corpus_are_distinct(folder):
    streams = [source.train for source in open_corpus(folder, GROUPS).values()]
    assert not np.array_equal(streams[0].read(0, 100), streams[1].read(0, 100))
