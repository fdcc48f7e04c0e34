"""Shards that lie in a store: the batches of local ones, no request where they are kept, and never wrong tokens."""

import os
import pickle
import shutil

import pytest

from k2jax.config.schema import SourceConfig, TokenizerConfig
from k2jax.data import prepare_data, shards
from k2jax.data.shards import open_shards
from k2jax.data.stored_folder import upload
from k2jax.files.objects import cached_reads
from k2jax.files.objects.host_settings import host_settings
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.objects.store_client import store_client
from tests.data.corpora import data_config, equal, text_folder, words
from tests.files.objects.fake_store import SCHEME, put
from tests.refusal import refused

RUN = {"batch_size": 4, "seed": 0, "steps": 5}
BPE = TokenizerConfig(vocab=260, train_bytes=2000)


@pytest.fixture
def small(monkeypatch, store):
    """Chunks of a kilobyte, and blocks that are checked when they are first read."""
    monkeypatch.setattr(cached_reads, "CHUNK", 1000)
    monkeypatch.setattr(shards, "VERIFY_BELOW", 0)
    return store


@pytest.fixture
def configs(tmp_path, small):
    """The same corpus with its cache on the disk and in a store, whose files are not there yet."""
    sources = {"s": text_folder(tmp_path / "texts", words(150))}
    return [data_config(cache, sources, tokenizer=BPE) for cache in (tmp_path / "cache", "fake://b/cache")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A cache on the disk."""
    folder = tmp_path_factory.mktemp("built")
    prepare_data(data_config(folder / "cache", {"s": text_folder(folder / "texts", words(150))}), **RUN)
    return folder / "cache"


@pytest.fixture
def folder(small, built):
    """The place of its shards in a store, where they are copied."""
    [local] = (built / "shards").iterdir()
    upload(local, ObjectPath.parse(f"fake://b/cache/shards/{local.name}"))
    small.asked.clear()
    return ObjectPath.parse(f"fake://b/cache/shards/{local.name}")


def batches(config):
    data = prepare_data(config, **RUN)
    return [data.fingerprint, *data.loader.batches(), *data.held_out.batches(8)]


def same(a, b):
    return a[0] == b[0] and len(a) == len(b) and all(equal(x, y) for x, y in zip(a[1:], b[1:], strict=True))


def test_a_cache_in_a_store_is_built_once_and_gives_the_same_batches(small, configs):
    local, stored = configs
    expected = batches(local)
    assert same(batches(stored), expected)
    written = [each for each in small.asked if each.startswith("write")]
    assert [each.rpartition("/")[2] for each in written[:2]] == ["tokenizer.json", "tokenizer.json.sha256"]
    assert "manifest.json" in written[-1], "what says that the folder is there is written last"
    asked = len(small.asked)
    assert same(batches(stored), expected)
    assert len(small.asked) == asked, "a warm tier asks nobody"
    shutil.rmtree(host_settings().folder)
    small.failures += [OSError("503"), None, 5, None, None, TimeoutError()] * 30
    assert same(batches(stored), expected)
    assert not [each for each in small.asked[asked:] if each.startswith("write")]


def test_the_kind_shards_reads_what_was_tokenised_elsewhere(configs, tmp_path):
    expected = batches(configs[0])
    batches(configs[1])
    [name], [tokenizer] = (os.listdir(tmp_path / "cache" / each) for each in ("shards", "tokenizers"))
    shutil.rmtree(tmp_path / "texts")
    settings = TokenizerConfig(kind="file", path=str(tmp_path / "cache/tokenizers" / tokenizer))
    for path in (
        f"fake://b/cache/shards/{name}",
        f"{tmp_path}/cache/shards/{name}",
        f"file://{tmp_path}/cache/shards/{name}",
    ):
        sources = {"s": SourceConfig(kind="shards", path=path)}
        assert same(batches(data_config(tmp_path / "other", sources, tokenizer=settings)), expected)
    with refused("was written with another tokenizer: set data.tokenizer to it"):
        batches(data_config(tmp_path / "other", sources))


def tokens(folder):
    stream = open_shards(folder).train
    return stream.read(0, stream.tokens).tolist()


def alter(path, place):
    content = bytearray(store_client(SCHEME).read_all(path.place))
    content[place] ^= 4
    put(path.place, bytes(content))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train/tokens-00000.bin", r"is altered \(bytes 0 to \d+ do not have their checksum\)"),
        ("train/offsets.npy", r"is altered \(bytes 0 to \d+ do not have their checksum\)"),
        ("train/pages.npy", "is altered .its sha256 is not the manifest's"),
        ("manifest.json", "is (altered|not readable|not a)"),
    ],
)
def test_a_byte_that_is_wrong_in_the_store_is_refused_with_file_and_position(folder, name, words):
    expected = tokens(folder)
    shutil.rmtree(host_settings().folder)
    alter(folder / name, 135)
    with refused(f"{folder / name} {words}.*delete the folder {folder} to have it built again"):
        tokens(folder)
    alter(folder / name, 135)
    assert tokens(folder) == expected, "what was wrong is not kept"


def test_a_byte_that_is_wrong_on_the_way_is_asked_for_again(small, folder):
    expected = tokens(folder)
    shutil.rmtree(host_settings().folder)
    small.failures += [None, *([0, *[None] * 9] * 20)]
    assert tokens(folder) == expected
    assert len(small.failures) < 190


def test_another_process_opens_the_shards_itself(folder):
    shards = open_shards(folder)
    copy = pickle.loads(pickle.dumps(shards))
    assert copy.train.read(3, 40).tolist() == shards.train.read(3, 40).tolist()


def test_a_build_that_is_broken_off_is_no_corpus_and_is_continued(configs, monkeypatch):
    client = store_client(SCHEME)
    real = client.write

    def broken(place, path):
        if place.endswith("bytes.npy"):
            raise KeyboardInterrupt
        real(place, path)

    with monkeypatch.context() as patch:
        patch.setattr(client, "write", broken)
        with pytest.raises(KeyboardInterrupt):
            batches(configs[1])
    below = list(ObjectPath.parse("fake://b/cache/shards").below())
    assert below and not [path for path in below if path.name == "manifest.json"]
    assert same(batches(configs[1]), batches(configs[0]))
