"""What a record names is opened below its folder, or at URLs that the source allows, and nowhere else."""

import json
import os
import time

from fsspec.registry import _registry
import pyarrow
import pyarrow.parquet
import pytest

from k2jax.config import defaults, resolve
from k2jax.data.images.places import NOWHERE, MediaPlaces, places_of_source, read_media, read_named
from k2jax.data.images.reading import FILE_LIMITS, ImageError
from k2jax.data.images.urls import allowed_beginning
from k2jax.files.objects import store_client
from tests.data.corpora import asked, write_records
from tests.data.images.counting import HITS, PNG
from tests.data.images.hostile import encoded, picture
from tests.data.images.test_corpus import Bucket, documents, image, prepared, source
from tests.data.images.test_records import tar
from tests.refusal import refused

KEY = "data.sources.chat.media_from"


@pytest.fixture
def folder(tmp_path):
    """The folder of a file of records, with pictures of its own, and others beside it that are private."""
    folder = tmp_path / "set"
    (folder / "deeper").mkdir(parents=True)
    (tmp_path / "set_of_another").mkdir()
    for file in ("private.png", "set_of_another/a.png", "set/own.png", "set/a::b.png"):
        (tmp_path / file).write_bytes(PNG)
    (folder / "deeper/own.png").write_bytes(encoded(picture(shade=7)))
    (folder / "out.png").symlink_to(tmp_path / "private.png")
    (folder / "in.png").symlink_to("own.png")
    (folder / "up").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe.png")
    return folder


def urls_of(port):
    """URLs of this machine in all spellings, chains, and other protocols."""
    host = f"127.0.0.1:{port}"
    hosts = [host, f"localhost:{port}", f"2130706433:{port}", f"0x7f000001:{port}", f"0x7f.1:{port}", f"127.1:{port}"]
    hosts += [f"0177.0.0.1:{port}", f"[::ffff:127.0.0.1]:{port}", f"[::1]:{port}", f"0:{port}", f"user:word@{host}"]
    hosts += [f"%31%32%37.0.0.1:{port}", f"127.0.0.1.:{port}", "169.254.169.254", "[fd00:ec2::254]", f"@{host}"]
    schemes = ["HTTP", "hTTp", "https", "gs", "s3", "az", "ftp", "sftp", "smb", "webhdfs", "jupyter", "dask", "dbfs"]
    schemes += ["github", "git", "hf", "reference", "generic", " http", "http ", "url:http"]
    chains = ["simplecache", "filecache", "blockcache", "async_wrapper", "dir", "reference://", "tar://a.png"]
    chains += ["libarchive://a", "zip://a.png", "zip://a.png::simplecache"]
    return [
        *(f"http://{each}/a.png" for each in hosts),
        *(f"{scheme}://{host}/a.png" for scheme in schemes),
        *(f"{chain}::http://{host}/a.zip" for chain in chains),
        *(f"http:{slashes}{host}/a.png" for slashes in ("", "/", "///", "\\\\", "//\n", "//\t")),
        *(f"s3://bucket/a::http://{host}/a.png", f"http://{host}/moved"),
    ]


def paths_of(folder):
    """Paths that lead out of a folder, to nothing, or to no regular file."""
    private, other = folder.parent / "private.png", folder.parent / "set_of_another/a.png"
    schemes = ("file", "FILE", "local", "memory", "simplecache::file", "simplecache::local", "dir::file")
    return [
        *(f"{scheme}://{private}" for scheme in schemes),
        *(f"{scheme}:{private}" for scheme in ("file", "simplecache:", "local")),
        *(str(private), "../private.png", "out.png", "up/private.png", "deeper/../../private.png", "./../private.png"),
        *(str(other), "../set_of_another/a.png", "up/set_of_another/a.png", "~/a.png", "~root/a.png", "/etc/passwd"),
        *("/dev/zero", "/proc/self/environ", "/proc/self/fd/0", "\\\\host\\a", "pipe.png", "deeper", ".", "..", "/"),
        *(str(folder), "loop", "loop/a.png", "missing.png", "own.png/a", "own.png\0", "\0", "a" * 5000),
        *("a/" * 2500, "../" * 1500 + "etc/passwd", "\ud800.png", "\udcff.png", "a\nb.png", "%2e%2e/private.png"),
        *("..%2fprivate.png", "deeper/..\\..\\private.png"),
    ]


def read(value, places):
    return read_media(value, places, FILE_LIMITS, "image 1")


def test_no_place_but_the_folder_is_opened_and_each_refusal_is_one_line(folder, port):
    places = MediaPlaces(str(folder), key=KEY)
    for value in (*urls_of(port), *paths_of(folder)):
        began = time.monotonic()
        with pytest.raises(ImageError) as error:
            read(value, places)
        line = str(error.value)
        assert line.startswith("image 1 ") and line.isprintable() and len(line) < 800, line
        assert time.monotonic() - began < 1
    for value in ("own.png", str(folder / "own.png"), f"http://127.0.0.1:{port}/a.png"):
        with refused("must come in a data URL", ImageError):
            read(value, NOWHERE)
    assert not HITS
    descriptors = len(os.listdir("/proc/self/fd"))
    for value in ("deeper", "pipe.png", "own.png/a"):
        with pytest.raises(ImageError):
            read(value, places)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    for value in ("own.png", "./own.png", "up/set/own.png", "in.png", "a::b.png", str(folder / "own.png")):
        assert read(value, places) == PNG


def test_the_line_of_a_refusal_names_the_key_and_what_to_add(folder):
    places = MediaPlaces(str(folder), key=KEY)
    for value, words in {
        "http://Example.com:8080/a.png?b=c": f"which {KEY} does not allow; .* add 'http://example.com:8080' to it",
        "https://[::1]/a.png": r"add 'https://\[::1\]' to it",
        "s3://bucket/a/b.png": "add 's3://bucket' to it",
        "../private.png": rf"leads out of {folder}; .* \({KEY}\)",
        "missing.png": rf"does not exist below {folder} \({KEY}\)",
        "ftp://example.com/a": "not opened: it is no URL of http, https, az, gs, s3",
    }.items():
        with refused(words, ImageError):
            read(value, places)


def chat_about(folder, contents):
    """The source of a file with a conversation about each of some contents."""
    question = {"type": "text", "text": "What is it?"}
    records = [asked([*content, question], str(number)) for number, content in enumerate(contents)]
    return source(kind="image_chat", path=write_records(folder / "chat.jsonl", records))


def test_a_source_opens_nothing_else_and_counts_what_it_refuses(folder, port, tmp_path):
    url = f"http://127.0.0.1:{port}/a.png"
    bad = [[image(place)] for place in (*urls_of(port), *paths_of(folder))]
    bad += [[{"type": "image_url", "image_url": {"url": url}}], [{"type": "video", "video": url}]]
    bad += [[{"type": "video", "video": [place], "fps": 1}] for place in (url, "../private.png")]
    chat = chat_about(folder, [[image("own.png")], [image("deeper/own.png")], *bad])
    data = prepared(tmp_path, {"chat": chat})
    assert (documents(data), data.manifests["chat"]["skipped"]["count"]) == (2, len(bad)) and not HITS
    with refused(f"{KEY} does not allow"):
        prepared(tmp_path / "again", {"chat": chat}, on_corrupt="fail")


def test_rows_of_parquet_and_samples_of_tars_name_files_below_their_folders_alone(folder, port, tmp_path):
    named = ["own.png", "deeper/own.png", "../private.png", "out.png", f"http://127.0.0.1:{port}/a.png"]
    messages = json.dumps(asked([image(None)], "It.")["messages"])
    rows = [{"messages": messages, "image": {"bytes": None, "path": place}} for place in named]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    samples = [(f"{number}.json", asked([image(place)], "It.")) for number, place in enumerate(named)]
    (folder / "rows.tar").write_bytes(tar([(name, json.dumps(record).encode()) for name, record in samples]))
    for file in ("rows.parquet", "rows.tar"):
        manifest = prepared(tmp_path, {"chat": source(kind="image_chat", path=str(folder / file))}).manifests["chat"]
        assert manifest["skipped"]["count"] == 3 and not HITS
        assert all(KEY in line for line in manifest["skipped"]["first"])


def test_what_a_source_allows_is_read_and_its_neighbours_are_not(folder, port, tmp_path):
    host = f"http://127.0.0.1:{port}"
    allowed = ["own.png", "set/deeper/own.png", f"{host}/pictures/1.png", f"{host}/pictures/2/3.png?a=b"]
    bad = [f"{host}/{path}" for path in ("moved", "a.png", "pictures/../a.png", "pictures_of_another/1.png")]
    (tmp_path / "own.png").write_bytes(encoded(picture(shade=9)))
    chat = chat_about(folder, [[image(place)] for place in (*allowed, *bad, "deeper/own.png", "/etc/passwd")])
    prepared(tmp_path, {"chat": chat}, sequence_length=256)  # what it refuses is not kept for those who allow it
    chat.media_from = (f"{host}/pictures/", str(tmp_path))  # relative paths begin in this folder
    data = prepared(tmp_path, {"chat": chat}, sequence_length=256)
    assert data.manifests["chat"]["skipped"]["count"] == len(bad) + 2
    data.loader.batch(0)
    assert set(HITS) == {"/pictures/1.png", "/pictures/2/3.png?a=b"}


def source_of(**keys):
    config = defaults("sft", model="micro")
    config.model.vision.layers = 1
    config.data.tokenizer.kind = "bytes"
    config.data.sources = {"chat": source(**{"kind": "image_chat", "path": "a"} | keys)}
    return resolve(config).data.sources["chat"]


def test_the_key_takes_a_folder_and_beginnings_of_urls(tmp_path):
    places = places_of_source("chat", source_of(media_from=("s3://bucket/a/", str(tmp_path), "https://example.com")))
    assert places.folder == str(tmp_path)
    assert [url.origin for url in places.urls] == ["s3://bucket", "https://example.com"]
    assert places.beside("elsewhere") == places and NOWHERE.beside("elsewhere").folder == "elsewhere"
    for place, words in {
        "http://user@example.com": "a user's name",
        "https://": "is no host",
        "s3://": "is no bucket",
        "file:///pictures": "no URL of http, https, az, gs, s3",
        "simplecache::http://example.com": "no URL of",
        "https://example.com/../a": r"segment \. or \.\.",
        "https://example.com/a?b": r"no \?",
        "https://exa mple.com": "percent-encoded",
        "no/such/folder": "is no folder",
    }.items():
        with refused(rf"^{KEY} .*{words}"):
            places_of_source("chat", source_of(media_from=(place,)))
    with refused("names 2 folders"):
        places_of_source("chat", source_of(media_from=(str(tmp_path), str(tmp_path))))
    with refused("media_from is for the kind image_chat, not image_trajectories"):
        source_of(kind="image_trajectories", media_from=("s3://bucket",))


def test_objects_of_a_bucket_are_read_by_their_keys_alone(monkeypatch):
    monkeypatch.setitem(_registry, "gs", Bucket)
    store_client._client.cache_clear()
    for key in ("pictures/a.png", "pictures/a%20b?c.png", "private.png"):
        Bucket().pipe_file(f"bucket/{key}", PNG)
    places = MediaPlaces(urls=(allowed_beginning("gs://bucket/pictures"),))
    assert read("gs://bucket/pictures/a.png", places) == read("gs://bucket/pictures/a%20b?c.png", places) == PNG
    for value, words in {
        "gs://bucket/pictures/b.png": "no such object",
        "gs://bucket/private.png": "does not allow",
        "gs://bucket/pictures/../private.png": r"segment \. or \.\.",
        "a.png": "files are not opened",
    }.items():
        with pytest.raises(ImageError, match=words):
            read(value, places)


def test_a_file_is_looked_at_when_it_is_open_and_not_read_when_it_is_large(folder, monkeypatch):
    places, flags, real = MediaPlaces(str(folder)), [], os.open
    with open(folder / "large.png", "wb") as file:
        file.truncate(10**13)
    with pytest.raises(ImageError, match=r"image 1 has 10,000,000\.0 MB; at most 50 are read"):
        read("large.png", places)
    with pytest.raises(ImageError, match=r"image 1 has 0\.0 MB"):
        read_media("own.png", places, FILE_LIMITS._replace(megabytes=1e-4), "image 1")

    def noted(path, flag, *rest, **options):
        flags.append(flag)
        return real(path, flag, *rest, **options)

    monkeypatch.setattr(os, "open", noted)
    with pytest.raises(ImageError, match="no regular file"):
        read("pipe.png", places)
    assert len(flags) == 1 and flags[0] & os.O_NONBLOCK and flags[0] & os.O_NOFOLLOW


def test_what_the_user_names_is_opened_wherever_it_is(folder, port):
    for place in (folder / "out.png", folder.parent / "private.png"):
        assert read_named(str(place), FILE_LIMITS, "image") == PNG
    assert read_named(f"http://127.0.0.1:{port}/a.png?b", FILE_LIMITS, "image") == PNG
    for place, words in (("pipe.png", "no regular file"), ("none.png", "No such file"), ("\0", "null")):
        with pytest.raises(ImageError, match=words):
            read_named(str(folder / place), FILE_LIMITS, "image")
    for place in (f"http://127.0.0.1:{port}/moved", f"simplecache::http://127.0.0.1:{port}/a.png"):
        with pytest.raises(ImageError):
            read_named(place, FILE_LIMITS, "image")
    assert set(HITS) == {"/a.png?b", "/moved"}
