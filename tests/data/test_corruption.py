"""Nothing corrupt passes through the cache: every damage is refused in one line, or changes nothing that is read."""

import dataclasses
from pathlib import Path
import shutil

import pytest

from k2jax.config.schema import TokenizerConfig
from k2jax.data import build_shards, prepare_data, shards
from k2jax.data.build_shards import prepare_shards
from k2jax.errors import UserError
from tests import corruption
from tests.data.corpora import data_config, equal, jsonl_file, words
from tests.refusal import refused

LAZY, EAGER = 0, 2**40  # values of VERIFY_BELOW: blocks are checked when they are first read, or all at opening


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """The configuration of a corpus whose splits have several shards, and all that is read of it."""
    folder = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_shards, "TOKENS_PER_SHARD", 20_000)
        sources = {"s": jsonl_file(folder / "s.jsonl", [text * 40 for text in words(80)])}
        tokenizer = TokenizerConfig(vocab=260, train_bytes=2000)
        config = data_config(folder / "cache", sources, tokenizer=tokenizer, held_out=0.4, sequence_length=512)
        return config, everything(config)


def everything(config):
    """All that can be read of a cache: tokens, indices, counts, batches, and what the tokenizer does."""
    data = prepare_data(config, batch_size=4, seed=0, steps=3)
    read = [data.fingerprint, data.manifests, data.tokenizer.fingerprint, data.tokenizer.encode("a bé\n")]
    read += [batch.tokens.tolist() for batch in (*data.loader.batches(), *data.held_out.batches(8))]
    source = prepare_shards("s", config, data.tokenizer)
    for stream in (source.train, source.held_out):
        read += [stream.documents, stream.tokens, stream.bytes, stream.targets]
        read += [stream.offsets.tolist(), stream.document_bytes.tolist(), stream.read(0, stream.tokens).tolist()]
    return read


def outcome(case, pristine, copy):
    """What comes of a damage to a copy of the cache: "unchanged", "refused", or what is wrong."""
    config, expected = pristine
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(config.cache_dir, copy)
    corruption.apply(case, copy)
    try:
        return "unchanged" if everything(dataclasses.replace(config, cache_dir=str(copy))) == expected else "silent"
    except UserError as error:
        one_line = "\n" not in str(error)
        named = any(str(copy / name) in str(error) for name in (case.file, case.other) if name)
        mended = "delete" in str(error)
        return "refused" if one_line and named and mended else str(error)
    except Exception as error:
        return repr(error)


def check(pristine, copy, monkeypatch, verify_below, **choice):
    monkeypatch.setattr(shards, "VERIFY_BELOW", verify_below)
    outcomes = {str(c): outcome(c, pristine, copy) for c in corruption.cases(Path(pristine[0].cache_dir), **choice)}
    wrong = {case: what for case, what in outcomes.items() if what not in ("refused", "unchanged")}
    assert not wrong, f"{len(wrong)} of {len(outcomes)}: {wrong}"
    assert list(outcomes.values()).count("refused") > len(outcomes) * 0.8


@pytest.mark.parametrize("verify_below", [LAZY, EAGER])
def test_no_damage_passes(pristine, tmp_path, monkeypatch, verify_below):
    check(pristine, tmp_path / "cache", monkeypatch, verify_below, flips=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_damage_passes_at_length(pristine, tmp_path, monkeypatch, seed):
    check(pristine, tmp_path / "cache", monkeypatch, LAZY, flips=20, seed=seed)


@pytest.mark.parametrize("damage", ["altered", "truncated"])
def test_damage_in_the_middle_of_a_run_is_one_line(pristine, tmp_path, monkeypatch, damage):
    """It is met in a thread of the loader. What was read before it was right; a mapped file would end the process."""
    monkeypatch.setattr(shards, "VERIFY_BELOW", LAZY)
    shutil.copytree(pristine[0].cache_dir, tmp_path / "cache")
    config = dataclasses.replace(pristine[0], cache_dir=str(tmp_path / "cache"))
    (file,) = tmp_path.glob("cache/shards/*/train/tokens-00001.bin")
    expected = list(prepare_data(config, batch_size=1, seed=0, steps=500).loader.batches())
    if damage == "altered":
        corruption.apply(corruption.Case("flip", file.name, 77), file.parent)
    data = prepare_data(config, batch_size=1, seed=0, steps=500)
    if damage == "truncated":
        corruption.apply(corruption.Case("truncate", file.name, 1000), file.parent)
    read = []
    found = "altered" if damage == "altered" else "1000 bytes long instead of 40000:"
    with refused(rf"{file} is {found} .*delete the folder {file.parents[1]} "):
        for batch in data.loader.batches():
            read.append(batch)
    assert read and all(equal(a, b) for a, b in zip(read, expected, strict=False))
