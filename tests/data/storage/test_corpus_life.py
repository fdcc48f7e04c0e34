"""Corpora are copied by hash, retired with a record, and shown on a page whose text is escaped."""

import json
import shutil
import subprocess
import sys

import pytest

from k2jax.cli import parse
from k2jax.config.schema import SourceConfig, TokenizerConfig
from k2jax.data import prepare_data
from k2jax.data.__main__ import define, main
from k2jax.data.kept_corpora import kept_corpora
from k2jax.data.shards import open_shards
from k2jax.data.storage import corpus_sync
from k2jax.data.storage.corpus_sync import sync_corpora
from k2jax.errors import UserError
from k2jax.files.objects.object_path import parse_place
from k2jax.files.objects.store_client import store_client
from tests.data.corpora import data_config, text_folder, words
from tests.files.objects.fake_store import SCHEME, put
from tests.refusal import refused

RUN = {"batch_size": 2, "seed": 0, "steps": 2}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Two sources."""
    source = text_folder(tmp_path_factory.mktemp("texts"), [*words(60), *[HOSTILE * 3] * 3])
    more = {"licence": f"CC0 {HOSTILE}", "version": "v1", "max_documents": 20}
    return {"a": source, "b": SourceConfig(kind="text", path=source.path, **more)}


@pytest.fixture(scope="module")
def built(tmp_path_factory, sources):
    """A cache with two corpora and a tokenizer."""
    folder = tmp_path_factory.mktemp("built")
    prepare_data(data_config(folder, sources, tokenizer=TokenizerConfig(vocab=260)), **RUN)
    return folder


@pytest.fixture
def cache(tmp_path, built):
    """A copy of it."""
    return shutil.copytree(built, tmp_path / "cache")


def command(capsys, *arguments):
    values, positional = parse(["data", *map(str, arguments)], define, "", ("COMMAND", "NAME", "DESTINATION"), 2)
    code = main(values, *positional)
    return code, capsys.readouterr().out


def names(cache):
    return sorted(path.name for path in (cache / "shards").iterdir() if not path.name.startswith("."))


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_cache_goes_to_a_store_and_back_and_only_what_is_missing_is_copied(store, cache, tmp_path, capsys):
    code, out = command(capsys, "sync", cache, "fake://b/corpora")
    assert code == 0 and "2 corpora: 28 files copied" in out and "requests to the store" in out
    assert "28 were there" in command(capsys, "sync", cache, "fake://b/corpora")[1]
    command(capsys, "sync", "fake://b/corpora", tmp_path / "back")
    assert files(tmp_path / "back") == files(cache)
    assert "as it was written" in command(capsys, "verify", "--cache_dir=fake://b/corpora")[1]
    listed = command(capsys, "list", "--cache_dir=fake://b/corpora")[1]
    assert all(name in listed for name in names(cache))
    assert "CC0" in command(capsys, "show", f"fake://b/corpora/shards/{names(cache)[0]}")[1] + command(
        capsys, "show", names(cache)[1], "--cache_dir=fake://b/corpora")[1]  # fmt: skip


def test_one_corpus_is_copied_with_the_tokenizers(cache, tmp_path, capsys):
    name = names(cache)[0]
    command(capsys, "sync", cache / "shards" / name, tmp_path / "other")
    assert names(tmp_path / "other") == [name] and (tmp_path / "other/tokenizers").is_dir()


@pytest.mark.parametrize("to", ["disk", "store"])
def test_a_copy_that_is_broken_off_is_no_corpus_and_is_continued(store, cache, tmp_path, monkeypatch, to):
    place = "fake://b/corpora" if to == "store" else str(tmp_path / "other")
    real, copied = corpus_sync.copy_file, []

    def broken(*arguments):
        if len(copied) == 5:
            raise KeyboardInterrupt
        copied.append(real(*arguments))

    monkeypatch.setattr(corpus_sync, "copy_file", broken)
    with pytest.raises(KeyboardInterrupt):
        sync_corpora(str(cache), place, print)
    assert kept_corpora(place)[0] == []
    monkeypatch.setattr(corpus_sync, "copy_file", real)
    counts = sync_corpora(str(cache), place, print)
    assert (counts.present, counts.files) == (5, 23)


def test_damage_is_not_copied(store, cache, tmp_path):
    path = cache / "shards" / names(cache)[0] / "train/tokens-00000.bin"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    for place in ("fake://b/corpora", str(tmp_path / "other")):
        with refused(f"{path} has the sha256 .* is its manifest's: it is damaged"):
            sync_corpora(str(cache), place, print)
        assert names(cache)[0] not in [each.folder.name for each in kept_corpora(place)[0]]


def test_a_file_of_the_copy_that_is_wrong_is_copied_again(store, cache, capsys):
    command(capsys, "sync", cache, "fake://b/corpora")
    place = f"b/corpora/shards/{names(cache)[0]}"
    store_client(SCHEME).remove(f"{place}/manifest.json")
    content = store_client(SCHEME).read_all(f"{place}/train/tokens-00000.bin")
    put(f"{place}/train/tokens-00000.bin", content[:-1] + b"?")
    assert f"{names(cache)[0]}: 2 files copied" in command(capsys, "sync", cache, "fake://b/corpora")[1]
    assert command(capsys, "verify", "--cache_dir=fake://b/corpora")[0] == 0
    put(f"{place}/train/tokens-00000.bin", content[:-1] + b"?")
    code, out = command(capsys, "verify", "--cache_dir=fake://b/corpora")
    assert code == 1 and f"fake://{place}/train/tokens-00000.bin is altered" in out


def test_what_a_store_gives_back_of_a_copy_is_compared(store, cache):
    store.failures += [None] * 3
    real = store._put
    store._put = lambda self, path, content: real(self, path, content[:-1] + b"!" if "tokens" in path else content)
    try:
        with refused("fake://b/corpora/shards/.*tokens-00000.bin has the sha256"):
            sync_corpora(str(cache), "fake://b/corpora", print)
    finally:
        store._put = real


def test_a_retired_corpus_is_gone_shown_and_not_built_or_copied_again(cache, sources, tmp_path, capsys):
    name, kept = names(cache)
    shutil.copytree(cache, tmp_path / "other")
    with refused("--reason is required"):
        command(capsys, "retire", name, f"--cache_dir={cache}")
    out = command(capsys, "retire", name, f"--cache_dir={cache}", "--reason=its licence")[1]
    assert f"{cache}/retired/{name}.json says so" in out and names(cache) == [kept]
    assert not [path for path in (cache / "shards").iterdir() if path.name.startswith(".")]
    assert "its licence" in command(capsys, "list", f"--cache_dir={cache}")[1]
    assert "not copied" in command(capsys, "sync", tmp_path / "other", cache)[1] and names(cache) == [kept]
    said = []
    for each in sources.values():
        try:
            prepare_data(data_config(cache, {"s": each}, tokenizer=_bpe(cache)), **RUN)
        except UserError as error:
            said.append(str(error))
    assert len(said) == 1 and said[0].startswith(f"{name} was retired on 20") and ": its licence; leave out" in said[0]


def _bpe(cache):
    [folder] = (cache / "tokenizers").iterdir()
    return TokenizerConfig(kind="file", path=str(folder))


def test_a_corpus_that_a_process_reads_is_not_retired(cache, capsys):
    name = names(cache)[0]
    code = f"""
from pathlib import Path
from k2jax.data.shards import open_shards
shards = open_shards(Path({str(cache / "shards" / name)!r}))
print("open", flush=True)
input()
"""
    reader = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert reader.stdout.readline() == b"open\n"
        with refused(f"{name} is read by a process of this machine"):
            command(capsys, "retire", name, f"--cache_dir={cache}", "--reason=x", "--yes")
    finally:
        reader.kill()
        reader.wait()
    command(capsys, "retire", name, f"--cache_dir={cache}", "--reason=x")


def test_a_corpus_of_a_store_needs_a_word_more(store, cache, capsys):
    command(capsys, "sync", cache, "fake://b/corpora")
    name, kept = names(cache)
    with refused("may be in use by runs that cannot be seen from here; stop them and give --yes"):
        command(capsys, "retire", name, "--cache_dir=fake://b/corpora", "--reason=x")
    command(capsys, "retire", name, "--cache_dir=fake://b/corpora", "--reason=x", "--yes")
    left = {str(path).removeprefix("fake://b/corpora/").split("/")[1] for path in parse_place("fake://b/corpora").below()
            if "tokenizers" not in str(path)}  # fmt: skip
    assert left == {kept, f"{name}.json"}
    with refused("manifest.json is missing"):
        open_shards(parse_place(f"fake://b/corpora/shards/{name}"))


def test_the_page_escapes_what_others_wrote(cache, tmp_path, capsys):
    command(capsys, "retire", names(cache)[0], f"--cache_dir={cache}", f"--reason={HOSTILE}")
    prepare_data(data_config(cache, {"c": text_folder(tmp_path / "more", [HOSTILE, *words(30)])}), **RUN)
    assert (
        "2 corpora" in command(capsys, "page", f"--cache_dir={cache}", f"--out={tmp_path}/page.html", "--count=40")[1]
    )
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page and page.count("&lt;script&gt;alert(1)") >= 2
    for text in (
        "default-src 'none'".replace("'", "'"),
        "records read",
        "for training",
        "Retired",
        "sha256",
        "tokens of a document",
    ):
        assert text in page
    assert '<td class="w">v1</td>' in page or "not given" in page


def test_a_damaged_record_of_a_retired_corpus_is_one_line(cache, capsys):
    (cache / "retired").mkdir()
    (cache / "retired/x.json").write_text(json.dumps({"name": "x"}))
    with refused("x.json is no record of a retired corpus"):
        command(capsys, "list", f"--cache_dir={cache}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sync", "a"), "sync takes two names"),
        (("verify", "a", "b"), "verify takes one name of a corpus, and 'b' is another"),
        (("page", "a"), "page takes no name of a corpus"),
        (("retire",), "name the corpus to retire"),
        (("sync", "/nowhere", "/tmp/x"), "/nowhere has no tokenised sources"),
        (("show", "https://example.com/x"), "names no bucket"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, arguments, words):
    with refused(words):
        command(capsys, *arguments)
