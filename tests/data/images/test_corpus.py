"""Sources of conversations with images: measured, packed, augmented and resumed; broken images are one line each."""

import json

from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
import jax
import numpy as np
from PIL import Image
import pytest

from k2jax.batch import PatchBatch
from k2jax.config import defaults, resolve, source
from k2jax.config.presets import vision_preset
from k2jax.data.images import conversations
from k2jax.data.images.image_rows import fit_two_budgets
from k2jax.data.images.placement import PatchRows
from k2jax.data.images.places import read_media
from k2jax.data.training_data import ImageShape, prepare_data
from k2jax.files.objects import store_client
from k2jax.files.objects.attempts import ONCE
from k2jax.text.media import MEDIA_PAD
from tests.data.corpora import asked, equal, write_records
from tests.data.images.hostile import animated, encoded, noise, picture, png
from tests.refusal import refused

VISION = vision_preset("nano_vision")


def prepared(folder, sources, *, stage="sft", devices=1, rows=4, log=None, **overrides):
    config = defaults(stage, model="micro")
    config.model.vision.layers = 1
    config.data.sources = sources
    config.data.tokenizer.update({"kind": "bytes", "media": True})
    config.data.update({"chat_format": "plain", "sequence_length": 192, "cache_dir": str(folder / "cache")})
    config.data.images.patches = 256
    config.data.update_from_flattened_dict(overrides)
    shape = PatchRows(4, rows, config.data.images.patches, devices)
    images = ImageShape(VISION, shape)
    return prepare_data(resolve(config).data, batch_size=4, seed=3, steps=9, images=images, log=log)


def documents(data, name="chat"):
    """Number of a source's conversations in both splits."""
    return sum(split["documents"] for split in data.manifests[name]["splits"].values())


GOOD = {
    "plain.png": encoded(picture()),
    "mislabelled.jpg": encoded(picture(shade=10)),
    "one_pixel.png": encoded(picture(size=(1, 1))),
    "animated.gif": animated("GIF"),
    "cmyk.jpg": encoded(picture("CMYK"), "JPEG"),
    "sixteen.png": encoded(Image.fromarray(np.full((56, 56), 40_000, np.uint16))),
}
BAD = {
    "truncated.png": encoded(noise())[:1500],
    "claimed.png": png(10_000, 10_000, pixels=b""),
    "page.png": b"<html>not a picture</html>",
    "empty.png": b"",
}


def image(place):
    return {"type": "image", "image": place}


def write_chat(folder, images):
    """The source of a conversation about each image, one about a missing image, and one of words; and its file."""
    records = [asked("Only words?", "Yes."), asked([image("missing.png")], "?")]
    for number, (name, data) in enumerate(images.items()):
        (folder / name).write_bytes(data)
        records.append(asked([image(name), {"type": "text", "text": f"Which is number {number}?"}], name))
    return {"chat": source(kind="image_chat", path=write_records(folder / "chat.jsonl", records))}


def add_record(folder, record):
    with (folder / "chat.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def test_an_image_that_changes_after_it_was_measured_ends_the_run_in_one_line(tmp_path):
    sources = write_chat(tmp_path, GOOD)
    data = prepared(tmp_path, sources)
    for name in GOOD:
        (tmp_path / name).write_bytes(encoded(picture(size=(28, 28))))
    with refused("is not the one that was measured"):
        for step in range(9):
            data.loader.batch(step)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return {"drawn": source(kind="synthetic_images", max_documents=24, side=64)}, tmp_path_factory.mktemp("drawn")


def test_a_corpus_that_moves_is_the_same_and_one_with_other_pixels_is_not(tmp_path):
    fingerprints, other = [], GOOD | {"plain.png": encoded(picture(shade=91))}
    for folder, images in (("here", GOOD), ("in/a/longer/path", GOOD), ("there", other)):
        (tmp_path / folder).mkdir(parents=True)
        sources = write_chat(tmp_path / folder, images)
        fingerprints.append(prepared(tmp_path / folder, sources).fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_a_damaged_cache_of_records_is_one_line(tmp_path):
    sources = {"drawn": source(kind="synthetic_images", max_documents=20, side=64)}
    prepared(tmp_path, sources)
    (records,) = (tmp_path / "cache").rglob("records.jsonl")
    whole = records.read_bytes()
    for damage in (whole[: len(whole) // 2], None, b"?" * len(whole)):
        records.unlink(missing_ok=True)
        if damage is not None:
            records.write_bytes(damage)
        with refused(r"records.jsonl is .* delete the folder .* to have it built again"):
            prepared(tmp_path, sources).loader.batch(0)


def test_batches_are_a_function_of_seed_and_step_and_augmentation_changes_from_step_to_step(drawn):
    sources, folder = drawn
    one, two, plain = (prepared(folder, sources, **{"images.augment": share}) for share in (1.0, 1.0, 0.0))
    ahead = list(one.loader.batches())
    assert len(ahead) == 9
    assert all(equal(batch, two.loader.batch(step)) for step, batch in enumerate(ahead))
    assert not equal(ahead[0].patches, plain.loader.batch(0).patches)
    repeated = {}
    for step in range(9):  # the same conversations come again, with other pixels
        for row in range(4):
            repeated.setdefault(plain.loader.batch(step).tokens[row].tobytes(), []).append((step, row))
    (step, row), (later, other) = next(places for places in repeated.values() if len(places) > 1)[:2]
    unchanged = [features_of(plain.loader.batch(at), place) for at, place in ((step, row), (later, other))]
    changed = [features_of(ahead[at], place) for at, place in ((step, row), (later, other))]
    assert np.array_equal(*unchanged) and not np.array_equal(*changed)
    assert equal(next(iter(one.held_out.batches(4))), next(iter(plain.held_out.batches(4))))


def test_processes_make_the_batches_of_a_thread_in_its_order(drawn, tmp_path):
    sources = {**drawn[0], "text": text_chat(tmp_path)}  # its shards are held open
    thread, processes = (
        list(prepared(tmp_path, sources, **{"images.augment": 0.5, "workers": workers}).loader.batches(3))
        for workers in (0, 2)
    )
    assert len(thread) == len(processes) == 6 and all(map(equal, thread, processes))


def test_pictures_of_words_may_be_as_low_as_a_line_and_those_of_shapes_not(tmp_path):
    line = {"kind": "synthetic_images", "max_documents": 6, "side": 112, "height": 28}
    data = prepared(tmp_path, {"words": source(**line, pictures=("read",))})
    patches = data.loader.batch(0).patches
    assert set(patches.height[patches.exit > patches.start]) == {2} and set(patches.width.ravel()) <= {1, 8}
    with refused("112 x 28 pixels: those of read, count are at least 64 wide and 64 high"):
        prepared(tmp_path, {"shapes": source(**line, pictures=("read", "count"))})


def features_of(batch, row):
    """The pixels that stand for the tokens of a row, in the order of the tokens."""
    places = batch.media[row]
    groups = batch.patches.pixels.reshape(-1, 4, batch.patches.pixels.shape[-1])
    return groups[places[places >= 0]]


def test_whatever_the_devices_the_same_pixels_stand_for_the_same_tokens_and_media_have_no_weight(drawn):
    sources, folder = drawn
    one, four = prepared(folder, sources), prepared(folder, sources, devices=4, rows=8)
    pad = one.tokenizer.special_id(MEDIA_PAD)
    for step in range(3):
        a, b = one.loader.batch(step), four.loader.batch(step)
        assert np.array_equal(a.tokens, b.tokens) and np.array_equal(a.tokens == pad, a.media >= 0)
        assert all(np.array_equal(features_of(a, row), features_of(b, row)) for row in range(4))
        assert not a.targets["weights"][a.media >= 0].any() and a.targets["weights"].any()
        assert isinstance(b.patches, PatchBatch) and b.patches.pixels.shape[0] == 8


def test_half_as_many_rows_of_patches_hold_the_images_of_half_the_rows(drawn, tmp_path):
    mixed = {**drawn[0], "text": text_chat(tmp_path)}
    settings = {"images.share": (0.5,), "images.share_from": (0.0,), "held_out": 0.5}
    whole, half = prepared(tmp_path, mixed, **settings), prepared(tmp_path, mixed, rows=3, **settings)
    for step in range(9):
        a, b = whole.loader.batch(step), half.loader.batch(step)
        assert np.array_equal(a.tokens, b.tokens) and b.patches.pixels.shape[0] == 3
        assert all(np.array_equal(features_of(a, row), features_of(b, row)) for row in range(4))
    for name in (None, "drawn"):
        parts = [list(data.held_out.batches(4, source=name)) for data in (whole, half)]
        rows = [sorted(row.tobytes() for batch in each for row in batch.tokens if row.any()) for each in parts]
        assert rows[0] == rows[1] and all(batch.patches.pixels.shape[0] == 3 for batch in parts[1])
        seen = [max((batch.media >= 0).any(1).sum() for batch in each) for each in parts]
        assert seen == [4, 3]
    with refused(r"step \d has [34] rows with images, and 2 rows of patches hold 2: "):
        prepared(tmp_path, mixed, rows=2, **settings | {"images.share": (0.9,)})


def part_of(loader, token_rows, patch_rows, step):
    """A batch as a process makes it that keeps some rows of tokens and computes some rows of patches."""
    loader._local_rows, loader._own = token_rows, frozenset(token_rows)
    loader._images._patch_rows = patch_rows
    return loader.batch(step)


@pytest.mark.parametrize("augment", [0.0, 1.0])
def test_processes_make_the_parts_of_one_batch(drawn, tmp_path, augment):
    mixed = {**drawn[0], **write_chat(tmp_path, many_pictures()), "text": text_chat(tmp_path)}
    frames = [f"frame{number}.png" for number in range(6)]
    for number, name in enumerate(frames):
        (tmp_path / name).write_bytes(encoded(picture(shade=number, size=(28, 28))))
    parts = [image("3.png"), {"type": "video", "video": frames, "fps": 2}]
    parts += [{"type": "image_url", "image_url": {"url": "4.png"}}, {"type": "text", "text": "Which is left?"}]
    record = asked(parts, [{"type": "boxes", "boxes": [[100, 200, 300, 400]]}])
    for _ in range(6):
        add_record(tmp_path, record | {"augment": ["flip", "turn", "light"]})
    loader = prepared(tmp_path, mixed, devices=4, rows=8, **{"images.augment": augment}).loader
    for step, whole in enumerate([loader.batch(step) for step in range(4)]):
        assert (whole.tokens[:, :20] > 1).any(1).all()  # no row is left out
        for token_rows, patch_rows in (((0, 2), (0, 1, 2, 3)), ((1, 3), (4, 5, 6, 7)), ((2,), ())):
            part = part_of(loader, token_rows, patch_rows, step)
            assert np.array_equal(part.tokens, whole.tokens[list(token_rows)])
            assert equal(part.targets, jax.tree.map(lambda leaf, rows=token_rows: leaf[list(rows)], whole.targets))
            assert np.array_equal(part.media, whole.media[list(token_rows)])
            kept = jax.tree.map(lambda leaf, rows=patch_rows: leaf[list(rows)], whole.patches)
            assert equal(part.patches, kept)


def test_a_process_opens_those_images_alone_that_its_devices_compute(tmp_path, monkeypatch):
    loader, opened = prepared(tmp_path, write_chat(tmp_path, many_pictures()), devices=4, rows=8).loader, []

    def noted(place, *rest):
        opened.append(place)
        return read_media(place, *rest)

    monkeypatch.setattr(conversations, "read_media", noted)
    parts = [part_of(loader, (row,), (2 * row, 2 * row + 1), 0) for row in range(4)]
    shown = sum(int((part.patches.start == np.arange(256)).sum()) for part in parts)
    assert len(opened) == len(set(opened)) > 4 and shown >= len(opened)


def many_pictures():
    """Files of pictures of many sizes."""
    rng = np.random.default_rng(0)
    sides = rng.integers(1, 5, (18, 2)) * 28
    return {
        f"{number}.png": encoded(Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)))
        for number, (height, width) in enumerate(sides)
    }


def text_chat(folder):
    records = [{"prompt": str(number), "completion": "b"} for number in range(40)]
    return source(kind="chat", path=write_records(folder / "text.jsonl", records))


@pytest.mark.slow
def test_processes_that_measure_write_what_one_writes(tmp_path):
    sources = write_chat(tmp_path, many_pictures() | BAD)
    one, two = (
        prepared(tmp_path, sources, workers=workers, cache_dir=str(tmp_path / f"cache{workers}")) for workers in (0, 2)
    )
    files = [sorted((tmp_path / f"cache{workers}").rglob("*.*")) for workers in (0, 2)]
    assert len(files[0]) == len(files[1]) == 4 and one.manifests == two.manifests
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))
    with refused(r"corrupt record in .*; repair it"):
        prepared(tmp_path, sources, cache_dir=str(tmp_path / "other"), on_corrupt="fail")


def test_one_drawn_picture_of_each_split_is_enough(tmp_path):
    data = prepared(tmp_path, {"drawn": source(kind="synthetic_images", max_documents=1, side=64)})
    assert [split["documents"] for split in data.manifests["drawn"]["splits"].values()] == [1, 1]


def test_rows_respect_both_budgets_and_hold_every_conversation_once():
    rng = np.random.default_rng(0)
    tokens, patches = rng.integers(1, 100, 700), rng.integers(0, 60, 700)
    rows = fit_two_budgets(tokens, patches, 100, 64)
    assert sorted(item for row in rows for item in row) == list(range(700))
    assert all(tokens[row].sum() <= 100 and patches[row].sum() <= 64 for row in rows)
    assert len(rows) <= 1.2 * max(tokens.sum() / 100, patches.sum() / 64) + 1


def test_a_conversation_that_no_row_holds_is_reported(tmp_path):
    sources = write_chat(tmp_path, GOOD | {"large.png": encoded(picture(size=(280, 280)))})
    prepared(tmp_path, sources)
    add_record(tmp_path, asked([image("large.png")] * 2, "Two."))
    data = prepared(tmp_path, sources)
    assert documents(data) == len(GOOD) + 2  # one image is reduced to a row, two are not
    lines = data.manifests["chat"]["skipped"]["first"]
    assert any("512 patches, more than the 256 of config.data.images.patches" in line for line in lines)


class Bucket(MemoryFileSystem):
    """A store without a service."""

    store, pseudo_dirs, protocol = {}, [""], ("s3", "gs")


def test_what_says_nothing_of_an_image_ends_the_measurement_and_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setitem(_registry, "s3", Bucket)
    monkeypatch.setattr(store_client, "RULE", ONCE)
    store_client._client.cache_clear()
    sources = write_chat(tmp_path, GOOD)
    sources["chat"].media_from = ("s3://store",)
    remote = "s3://store/plain.png"
    add_record(tmp_path, asked([image(remote)], "There."))
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "cat_file", lambda self, path, **options: (_ for _ in ()).throw(TimeoutError()))
        with refused(f"cannot be read from '{remote}': .*failed: TimeoutError"):
            prepared(tmp_path, sources)
    Bucket().pipe_file("store/plain.png", encoded(picture()))
    assert documents(prepared(tmp_path, sources)) == len(GOOD) + 2


def test_a_source_with_images_needs_a_tower(tmp_path):
    config = defaults("sft", model="micro")
    config.data.sources = {"drawn": source(kind="synthetic_images")}
    config.data.tokenizer.kind = "bytes"
    with refused(r"has images, and config\.model\.vision\.layers is 0"):
        resolve(config)
