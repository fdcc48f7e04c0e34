"""Sources with images in an object store: read as from the disk, kept on the disk, and asked for once."""

import io
import json
import tarfile

from fsspec.registry import _registry
import pyarrow
import pyarrow.parquet
import pytest

from k2jax.config import source
from k2jax.files.objects.cached_reads import forget_kept, read_kept
from k2jax.files.objects.object_address import ObjectAddress
from tests.data.corpora import asked, equal
from tests.data.images.hostile import encoded, picture
from tests.data.images.test_corpus import documents, image, prepared
from tests.files.objects.fake_store import FakeStore, put, store
from tests.refusal import refused

__all__ = ["store"]
PICTURES = {f"pictures/{number}.png": encoded(picture(shade=20 * number)) for number in range(8)}


@pytest.fixture
def bucket(store, monkeypatch):
    """The store at URLs of ``gs``, whose objects have versions."""
    monkeypatch.setitem(_registry, "gs", FakeStore)
    return store


def lines(names):
    records = [asked([image(name)], f"Picture {name}.") for name in names]
    clip = {"type": "video", "video": names[:2], "fps": 2}
    records.append(asked([clip, {"type": "text", "text": "What?"}], "A clip."))
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def table():
    sink = pyarrow.BufferOutputStream()
    rows = {"messages": [], "images": []}
    for number, data in enumerate(PICTURES.values()):
        rows["messages"].append(json.dumps(asked([{"type": "image"}], f"Row {number}.")["messages"]))
        rows["images"].append([data])
    pyarrow.parquet.write_table(pyarrow.table(rows), sink)
    return sink.getvalue().to_pybytes()


def archive():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number, data in enumerate(PICTURES.values()):
            for name, content in ((f"{number}.png", data), (f"{number}.txt", b"Sample %d." % number)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


FILES = {"chat.jsonl": lines(list(PICTURES)), "rows.parquet": table(), "samples.tar": archive()}


def test_lists_tables_and_archives_of_a_store_give_the_batches_of_the_disk_and_a_warm_tier_asks_nobody(
    bucket, tmp_path
):
    for name, content in (PICTURES | FILES).items():
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(content)
        put(f"b/set/{name}", content)
    local = prepared(tmp_path, {"chat": source(kind="image_chat", path=str(tmp_path / "local"))})
    stored = {"chat": source(kind="image_chat", path="gs://b/set")}
    data = prepared(tmp_path, stored, cache_dir=str(tmp_path / "other"))
    assert documents(data) == documents(local) == 3 * len(PICTURES) + 1
    assert data.fingerprint == local.fingerprint
    bucket.asked.clear()
    for step in range(3):
        equal(data.loader.batch(step), local.loader.batch(step))
    again = prepared(tmp_path, stored, cache_dir=str(tmp_path / "other"))
    equal(again.loader.batch(5), local.loader.batch(5))
    assert {call.split()[0] for call in bucket.asked} == {"list"}


def test_a_url_is_opened_below_the_folder_of_its_list_and_nowhere_else(bucket, tmp_path):
    put("b/set/a.png", PICTURES["pictures/1.png"])
    put("b/other/a.png", PICTURES["pictures/2.png"])
    names = ["gs://b/set/a.png", "a.png", "gs://b/other/a.png", "../other/a.png", "/b/other/a.png", "gs://b/set"]
    records = [asked([image(name)], f"{number}.") for number, name in enumerate(names)]
    records += [asked("Words?", f"{number}") for number in range(4)]
    put("b/set/chat.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
    data = prepared(tmp_path, {"chat": source(kind="image_chat", path="gs://b/set/chat.jsonl")})
    assert documents(data) == 2 + 4
    why = "\n".join(data.manifests["chat"]["skipped"]["first"])
    assert "media_from does not allow" in why and "segment . or .." in why and "there is no such object" in why


def test_what_the_disk_keeps_of_another_version_is_asked_for_again(bucket, tmp_path):
    for name, content in PICTURES.items():
        put(f"b/{name}", content)
    put("b/chat.jsonl", lines(list(PICTURES)))
    data = prepared(tmp_path, {"chat": source(kind="image_chat", path="gs://b/chat.jsonl")})
    expected = data.loader.batch(0)
    for name in PICTURES:  # another run has kept what was there for a while
        place = ObjectAddress("gs", f"b/{name}")
        put(f"b/{name}", b"no picture" if name.endswith("1.png") else encoded(picture(size=(28, 28))))
        forget_kept(place)
        read_kept(place)
        put(f"b/{name}", PICTURES[name])
    equal(data.loader.batch(0), expected)
    for name in PICTURES:
        put(f"b/{name}", encoded(picture(size=(28, 28))))
    equal(data.loader.batch(0), expected)  # kept as they were measured
    for name in PICTURES:
        forget_kept(ObjectAddress("gs", f"b/{name}"))
    with refused("is not the one that was measured"):
        for step in range(9):
            data.loader.batch(step)


@pytest.mark.parametrize("name", FILES)
def test_a_store_that_fails_is_never_a_shorter_corpus(bucket, tmp_path, name):
    for picture_name, content in PICTURES.items():
        put(f"b/{picture_name}", content)
    put(f"b/{name}", FILES[name])
    bucket.failures += [None] * 9 + [OSError("Slow Down")] * 200
    bucket.asked.clear()
    with refused(f"^gs://b/{name} failed after 8 attempts"):  # not a source whose records are all corrupt
        prepared(tmp_path, {"chat": source(kind="image_chat", path=f"gs://b/{name}")})
    assert bucket.asked[9].startswith(f"read b/{name}")


def test_a_file_that_is_too_large_is_not_kept_in_part(bucket, tmp_path):
    put("b/large.png", PICTURES["pictures/1.png"] + bytes(3000))
    records = [asked([image("large.png")], "Large."), *(asked("Words?", f"{number}") for number in range(4))]
    put("b/chat.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
    sources = {"chat": source(kind="image_chat", path="gs://b/chat.jsonl")}
    data = prepared(tmp_path, sources, **{"images.megabytes": 0.002})
    assert documents(data) == 4 and "at most 0.002" in str(data.manifests["chat"]["skipped"]["first"])
    assert len(read_kept(ObjectAddress("gs", "b/large.png"))) > 3000
