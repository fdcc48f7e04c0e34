"""Text that fills rows with images: counted token by token, random access, and what no source of text has twice."""

import collections
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.batch import stack_rows
from k2jax.config.schema import SourceConfig
from k2jax.data import DataLoader, RowSource
from k2jax.data.filling import SHORTEST, RowsPart, divided
from k2jax.data.images.conversations import RenderedConversation
from k2jax.data.images.image_rows import PlannedRow, VisualRows
from k2jax.data.vision_share import VisionShare
from tests.data.corpora import ListStream, equal

LENGTH, BATCH = 64, 8
IMAGE = 1_000_000  # the token of all conversations with images


class Split:
    """Conversations of these lengths, with a patch each, of one token."""

    renderer = SimpleNamespace(render=lambda conversation: conversation)

    def __init__(self, lengths):
        self.tokens, self.patches = np.array(lengths), np.ones(len(lengths), int)
        self.documents = len(lengths)

    def grids(self, number):
        return []

    def conversation(self, number, needed):
        size = int(self.tokens[number])
        return RenderedConversation(
            np.full(size, IMAGE, np.int32), np.ones(size, bool), [], np.full(size, -1, np.int32)
        )


class Batches:
    """All rows as they are, without patches."""

    shape = SimpleNamespace(rows=BATCH, each=1)

    def batch(self, row_of, local_rows, key):
        rows = [row_of(number) for number in local_rows]
        built = [row.build(None, ()) if isinstance(row, PlannedRow) else row for row in rows]
        return stack_rows([row.replace(media=None, patches=None) for row in built])


def visual(lengths):
    return VisualRows(Split(lengths), LENGTH, patches=1)


def text(documents, first=0):
    """Documents of distinct tokens from ``first`` on."""
    stream = ListStream(documents)
    stream.read = lambda start, stop: np.arange(first + start, first + stop, dtype=np.int32)
    return RowSource(stream, LENGTH)


def loader(rows, steps, share=None, epochs=None, local_rows=None, seed=0):
    sources = {name: SourceConfig(max_epochs=(epochs or {}).get(name, 0.0)) for name in rows}
    return DataLoader(
        rows,
        sources,
        batch_size=BATCH,
        seed=seed,
        steps=steps,
        images=Batches(),
        vision_share=share and VisionShare(frozenset({"images", "clips"}), *share),
        local_rows=local_rows,
    )


def real(batch):
    return batch.exit > np.arange(LENGTH)


def targets(data, steps):
    """How often each token of text is a target."""
    seen = collections.Counter()
    for step in steps:
        batch = data.batch(step)
        chosen = (batch.targets["weights"] > 0) & (batch.tokens < IMAGE)
        seen.update(batch.tokens[chosen].tolist())
    return seen


def test_rows_with_images_are_full_and_shares_of_tokens_are_what_is_asked_for():
    rng = np.random.default_rng(0)
    rows = {"images": visual(rng.integers(10, 25, 200)), "web": text([40] * 2000)}
    data, steps = loader(rows, 200, ((0.1,), (0.0,))), range(200)
    batches = [data.batch(step) for step in steps]
    tokens = np.concatenate([batch.tokens[real(batch)] for batch in batches])
    assert len(tokens) / (200 * BATCH * LENGTH) > 0.99
    assert (tokens == IMAGE).mean() == pytest.approx(0.1, abs=0.003)
    mixed = [row for batch in batches for row in batch.tokens if IMAGE in row]
    assert np.mean([(row != IMAGE).sum() for row in mixed]) > LENGTH / 2


@pytest.mark.parametrize("share", [0.05, 0.1, 0.28, 0.5, 0.9, 1.0])
def test_where_there_is_less_text_than_free_tokens_some_rows_are_not_filled(share):
    rows = {"images": visual([18] * 64), "web": text([40] * 500)}
    data = loader(rows, 150, ((share,), (0.0,)))
    tokens = np.concatenate([batch.tokens[real(batch)] for batch in map(data.batch, range(150))])
    assert (tokens == IMAGE).mean() == pytest.approx(share, abs=0.01)


def test_phases_keep_their_shares_and_their_parts_of_all_tokens():
    rows = {"images": visual([18] * 64), "clips": visual([30, 9] * 20), "web": text([40] * 900)}
    data = loader(rows, 300, ((0.0, 0.2), (0.0, 0.5)))
    counts = [(real(batch).sum(), (batch.tokens == IMAGE).sum()) for batch in map(data.batch, range(300))]
    every, seen = np.cumsum(counts, 0).T
    half = int(np.flatnonzero(seen)[0])
    assert every[half] / every[-1] == pytest.approx(0.5, abs=0.01)
    assert seen[-1] / (every[-1] - every[half]) == pytest.approx(0.2, abs=0.01)


def test_every_target_of_a_stream_is_one_exactly_once_a_pass_and_no_document_leaks_into_another():
    rows = {"images": visual([20, 33, 47, 58, 12, 63] * 20), "web": text([13, 200, 7] * 40)}
    filled = loader(rows, 400)._filled["images"]
    (stream,), starts = filled._streams, set(rows["web"].stream.offsets.tolist())
    seen = collections.Counter()
    for row in map(filled.row, range(2000)):
        documents = row.filling()
        assert sum(map(len, documents)) + rows["images"].stream.tokens[list(row.numbers)].sum() <= LENGTH
        for document in documents:
            assert (np.diff(document) == 1).all() and not starts & set(document[1:].tolist())
            seen.update(document[1:].tolist())
    part = stream._part
    own = [range(begin + 1, stop) for begin, stop in map(rows["web"].span, map(part.number, range(len(part))))]
    counts = {seen[token] for stretch in own for token in stretch if token not in starts}
    assert len(counts) <= 2 and max(counts) - min(counts) <= 1 and min(counts) > 2
    assert seen.keys() <= {token for stretch in own for token in stretch}


def test_a_row_is_the_same_by_random_access_and_in_every_process():
    rows = {"images": visual([20, 33, 47] * 30), "web": text([50] * 300), "books": text([90] * 100, first=20_000)}
    share = ((0.1,), (0.0,))
    data, again = loader(rows, 60, share), loader(rows, 60, share)
    whole = [data.batch(step) for step in range(60)]
    for step in (59, 0, 17):
        equal(again.batch(step), whole[step])
        parts = [loader(rows, 60, share, local_rows=own).batch(step) for own in ([0, 3], [1, 2, 4, 5, 6, 7])]
        np.testing.assert_array_equal(parts[0].tokens, whole[step].tokens[[0, 3]])
        np.testing.assert_array_equal(parts[1].tokens, whole[step].tokens[[1, 2, 4, 5, 6, 7]])
    assert not np.array_equal(loader(rows, 60, share, seed=1).batch(0).tokens, whole[0].tokens)


def test_no_text_is_a_target_more_often_than_its_passes_say_in_rows_and_pieces_together():
    rows = {"images": visual([20, 33, 47] * 30), "web": text([50] * 250)}
    steps = next(s for s in range(60, 0, -1) if _lasts(rows, s))
    data = loader(rows, steps, ((0.1,), (0.0,)), epochs={"web": 1.0})
    seen = targets(data, range(steps))
    assert set(seen.values()) == {1}
    assert len(seen) > 0.9 * (rows["web"].stream.tokens - rows["web"].stream.documents)


def _lasts(rows, steps):
    try:
        return bool(loader(rows, steps, ((0.1,), (0.0,)), epochs={"web": 1.0}))
    except Exception:  # the data do not last for so many steps
        return False


class Counted:
    """So many rows."""

    stream, length = None, LENGTH

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9000), st.lists(st.floats(0, 100), min_size=1, max_size=4))
def test_the_parts_of_a_source_are_disjoint_and_all_of_it_in_their_shares(count, shares):
    rows = Counted(count)
    parts = [part for part, share in zip(divided(rows, shares), shares, strict=True) if share > 0]
    numbers = [part.number(index) for part in parts for index in range(len(part))]
    assert max(numbers, default=0) < count
    if len(parts) > 1 and count >= 4096:
        assert sorted(numbers) == list(range(count))
        for part, share in zip(parts, [share for share in shares if share > 0], strict=True):
            assert len(part) / count == pytest.approx(share / sum(shares), abs=0.003)


def test_rows_of_text_alone_are_those_of_a_run_without_images():
    rows = {"web": text([50] * 250), "books": text([90] * 100, first=20_000)}
    plain = DataLoader(rows, {name: SourceConfig() for name in rows}, batch_size=BATCH, seed=0, steps=20)
    with_tower = loader(rows, 20)
    for step in range(20):
        np.testing.assert_array_equal(with_tower.batch(step).tokens, plain.batch(step).tokens)
    assert not with_tower._filled
    assert SHORTEST > 2 and len(RowsPart(rows["web"])) == len(rows["web"])
