"""Text as it arrives, against decoding and cutting it all at once."""

import functools

from hypothesis import given
from hypothesis import strategies as st
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from k2jax.text import Tokenizer, byte_tokenizer, gguf_tokenizer, train_bpe
from k2jax.text.streaming import StopStrings, TextStream
from tests.text import kimi
from tests.text.test_gguf_vocabulary import small

PARTS = ["🧑‍🚀", "月之暗面", "é", " a", "the ", "\n", "👩🏽‍💻"]
TEXT = st.text(max_size=30) | st.lists(st.sampled_from(PARTS)).map("".join)


@functools.cache
def metaspace():
    """Like Llama 2: a space is part of the next word, the first one is dropped, other bytes have tokens."""
    pieces = ["[BOS]", "[EOS]", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "é", "月", "▁a", "ab"]
    merges = [("▁", "a"), ("a", "b")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["[BOS]", "[EOS]"])
    return Tokenizer(backend.to_str())


@functools.cache
def bpe():
    return train_bpe(kimi.TEXTS * 5, 600)


BYTE_LEVEL = {"bytes": byte_tokenizer, "bpe": bpe, "kimi": kimi.tokenizer}


def pieces_of(tokenizer, ids, before=()):
    stream = TextStream(tokenizer, before)
    return [*(stream.feed(i) for i in ids), stream.end()]


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(data=st.data())
def test_pieces_of_any_ids_are_the_text_of_all(name, data):
    tokenizer = BYTE_LEVEL[name]()
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30))
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", [*BYTE_LEVEL, "metaspace"])
@given(text=TEXT)
def test_a_piece_never_ends_inside_a_character(name, text):
    tokenizer = {**BYTE_LEVEL, "metaspace": metaspace}[name]()
    text = text.replace("\ufffd", "").strip() if name == "metaspace" else text.replace("\ufffd", "")
    ids = tokenizer.encode(text)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte():
    tokenizer = byte_tokenizer()
    assert pieces_of(tokenizer, tokenizer.encode("a🧑é")) == ["a", "", "", "", "🧑", "", "é", ""]
    assert pieces_of(tokenizer, tokenizer.encode("🧑")[:3]) == ["", "", "", "\ufffd"]


def test_the_space_after_a_prompt_is_kept():
    tokenizer = metaspace()
    word = tokenizer.encode("ab")
    assert "".join(pieces_of(tokenizer, tokenizer.encode("a"), word)) == " a"
    assert "".join(pieces_of(tokenizer, tokenizer.encode("a"))) == "a"


def cut(text, stops):
    """The oracle: character by character, up to the first one that completes a stop string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(
    pieces=st.lists(st.text("ab月", max_size=4), max_size=12),
    stops=st.lists(st.text("ab月", min_size=1, max_size=4), max_size=4),
)
def test_stop_strings_cut_like_the_whole_text(pieces, stops):
    filtered = StopStrings(stops)
    returned = []
    for i, piece in enumerate(pieces):
        returned.append(filtered.feed(piece))
        so_far = "".join(pieces[: i + 1])
        assert filtered.stopped == cut(so_far, stops)[1]
        shown = "".join(returned)
        held = so_far[len(shown) :]
        if not filtered.stopped:  # no more is held than can begin a stop string
            assert not held or any(stop.startswith(held) for stop in stops)
    returned.append(filtered.end())
    assert ("".join(returned), filtered.stopped) == cut("".join(pieces), stops)


def test_a_document_begins_with_bos_where_the_vocabulary_has_one():
    tokenizer = byte_tokenizer()
    assert tokenizer.encode_document("a") == [tokenizer.bos, 2 + ord("a")]
    chat = gguf_tokenizer(small())
    assert chat.encode_document("a") == chat.encode("a")
