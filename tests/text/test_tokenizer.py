import hashlib
import json
import os
import shutil
import subprocess

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from k2jax.errors import UserError
from k2jax.text import byte_tokenizer, load_tokenizer, train_bpe
from tests import corruption
from tests.refusal import refused

BYTES = byte_tokenizer()
BPE = train_bpe(["def f(x):\n    return [EOS] x  # [BOS]\n"] * 50 + ["[EOS]"] * 500, 320)
SOME_TEXT = st.text() | st.lists(st.sampled_from(["[BOS]", "[EOS]", "def f", " ", "é", "\n", "[", "]"])).map("".join)


@given(SOME_TEXT)
def test_any_text_round_trips_and_never_holds_a_special_id(text):
    for tokenizer in (BYTES, BPE):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {tokenizer.bos, tokenizer.eos} & set(ids)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)


@given(st.text())
def test_byte_tokens_are_the_utf8_bytes(text):
    assert BYTES.encode(text) == [2 + byte for byte in text.encode()]


def test_special_ids_and_sizes():
    assert (BYTES.bos, BYTES.eos, BYTES.vocab_size) == (0, 1, 258)
    assert (BPE.bos, BPE.eos) == (0, 1)
    assert 258 < BPE.vocab_size <= 320
    assert len(BPE.encode("def f(x):")) < 9  # merges were learnt
    assert BPE.decode([0, *BPE.encode("def"), 1]) == "def"


def test_a_batch_encodes_as_its_texts_do():
    texts = ["def f", "", "x [EOS]", "é" * 50]
    assert [ids.tolist() for ids in BPE.encode_batch(texts)] == [BPE.encode(text) for text in texts]
    assert all(ids.dtype == np.uint32 for ids in BPE.encode_batch(texts))


def test_training_is_deterministic():
    texts = [f"def f{i}(x): return x + {i * 7}\n" for i in range(500)]
    assert len({train_bpe(texts, 400).fingerprint for _ in range(3)}) == 1


def test_saving_keeps_content_and_fingerprint(tmp_path):
    BPE.save(tmp_path / "new")
    content = (tmp_path / "new" / "tokenizer.json").read_bytes()
    for path in (tmp_path / "new", tmp_path / "new" / "tokenizer.json"):
        loaded = load_tokenizer(path)
        assert loaded.fingerprint == BPE.fingerprint == hashlib.sha256(content).hexdigest()
        assert loaded.encode("return x [EOS]") == BPE.encode("return x [EOS]")


def test_a_saved_tokenizer_is_loaded_as_it_was_saved_or_not_at_all(tmp_path):
    """As a run's workdir holds it; the text that is encoded would not show most of the damages."""
    BPE.save(tmp_path / "saved")
    refused = 0
    for case in corruption.cases(tmp_path / "saved", flips=30):
        shutil.copytree(tmp_path / "saved", copy := tmp_path / "copy")
        corruption.apply(case, copy)
        try:
            assert load_tokenizer(copy).fingerprint == BPE.fingerprint, case
        except UserError as error:
            refused += 1
            assert str(copy / "tokenizer.json") in str(error) and "\n" not in str(error)
        shutil.rmtree(copy)
    assert refused > 60


def test_a_tokenizer_reaches_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    BPE.save(tmp_path)
    assert sum("tokenizer.json" in name for name in synced) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer.json.sha256"]


def test_the_checksum_of_a_tokenizer_is_in_the_form_of_sha256sum(tmp_path):
    BPE.save(tmp_path)
    subprocess.run(["sha256sum", "--check", "tokenizer.json.sha256"], cwd=tmp_path, check=True, capture_output=True)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    with refused(r"if you have changed it yourself, delete .*tokenizer\.json\.sha256"):
        load_tokenizer(file)
    (tmp_path / "tokenizer.json.sha256").unlink()
    assert load_tokenizer(file).encode("return") == BPE.encode("return")


def foreign(path, added, special=True, backend=None):
    """A byte-level tokenizer.json of somebody else, with the added tokens after the bytes."""
    if backend is None:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken(name, special=special, normalized=False) for name in added])
    backend.save(str(path))
    return path


@pytest.mark.parametrize("special", [True, False])
def test_foreign_special_tokens_are_found_and_never_come_from_text(tmp_path, special):
    file = foreign(tmp_path / "tokenizer.json", ["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"], special)
    tokenizer = load_tokenizer(file)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.vocab_size) == (256, 257, 259)
    text = "a<|end_of_text|><|begin_of_text|>b<|end_of_text|>"
    assert not {256, 257} & set(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    if special:
        assert 258 not in tokenizer.encode("<|im_end|>")


def test_special_tokens_spelled_as_ordinary_entries_never_come_from_text(tmp_path):
    entries = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((c, -5.0) for c in "</s>ab")]
    backend = tokenizers.Tokenizer(models.Unigram(list(dict(entries).items()), unk_id=0))
    tokenizer = load_tokenizer(foreign(tmp_path / "t.json", [], backend=backend))
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    ids = tokenizer.encode("a</s>b<s>ab</s>")
    assert not {1, 2} & set(ids)
    assert "".join(tokenizer._backend.id_to_token(i) for i in ids) == "a</s>b<s>ab</s>"


def test_spelled_out_special_tokens_keep_the_merges_of_ordinary_text(tmp_path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*letters, "[E"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("[", "E")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = load_tokenizer(foreign(tmp_path / "t.json", ["[BOS]", "[EOS]"], backend=backend))
    assert tokenizer.encode("[EOS]") == [vocab["[E"], *(vocab[letter] for letter in "OS]")]


def test_one_token_may_begin_and_end_documents(tmp_path):
    tokenizer = load_tokenizer(foreign(tmp_path / "t.json", ["<|endoftext|>"]))
    assert tokenizer.bos == tokenizer.eos == 256


@pytest.mark.parametrize(("single", "expected"), [(["[X]", "$A", "[Y]"], (256, 257)), (["$A", "[Y]"], (258, 257))])
def test_the_template_of_a_file_names_the_ends_of_documents(tmp_path, single, expected):
    file = foreign(tmp_path / "t.json", ["[X]", "[Y]", "[BOS]", "[EOS]"])
    backend = tokenizers.Tokenizer.from_file(str(file))
    template = processors.TemplateProcessing(single=single, special_tokens=[("[X]", 256), ("[Y]", 257)])
    for processor in (template, processors.Sequence([processors.ByteLevel(), template])):
        backend.post_processor = processor
        tokenizer = load_tokenizer(foreign(tmp_path / "t.json", [], backend=backend))
        assert (tokenizer.bos, tokenizer.eos) == expected


def test_truncation_and_padding_of_a_foreign_file_are_not_applied(tmp_path):
    backend = tokenizers.Tokenizer.from_str(json.dumps(json.loads(BPE._content)))
    backend.enable_truncation(4)
    backend.enable_padding(length=9, pad_token="a", pad_id=66)
    tokenizer = load_tokenizer(foreign(tmp_path / "t.json", [], backend=backend))
    assert tokenizer.encode("q" * 30) == BPE.encode("q" * 30)
    assert tokenizer.encode("q") == BPE.encode("q")


def test_the_bytes_of_tokens_are_those_of_their_text(tmp_path):
    for text in ("def é\n", "月"):
        assert b"".join(map(BPE.token_bytes, BPE.encode(text))) == text.encode()
    names = ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
    tokenizer = load_tokenizer(foreign(tmp_path / "t.json", names))
    assert [tokenizer.token_bytes(i) for i in (256, 257)] == [name.encode() for name in names]
    assert [tokenizer.token_bytes(i) for i in (-1, 258)] == [b"", b""]


@pytest.mark.parametrize(("added", "missing"), [(["</s>"], "beginning"), (["<s>"], "end")])
def test_a_missing_special_token_is_named(tmp_path, added, missing):
    with refused(rf"t\.json has no {missing} of document token"):
        load_tokenizer(foreign(tmp_path / "t.json", added))


@pytest.mark.parametrize("content", [b"{}", b"not json", b"\xff\xfe", None])
def test_an_unusable_file_is_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with refused(r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_without_room_for_every_byte_is_refused():
    with refused("at least 258"):
        train_bpe(["text"], 257)
