"""A small vocabulary in the form of Kimi K2's release: a rank file and the names of its special tokens."""

import base64
import functools
import json
from pathlib import Path
import tempfile

from k2jax.text import load_tokenizer, train_bpe
from k2jax.text.byte_level import letter_bytes
from k2jax.text.rank_file import KIMI_NAMES

TEXTS = [
    "The quick brown fox's 12345 jumps; it'll land where they're WAITING. def f(x):\n    return {'a': [1, 2, 3]}\n",
    "月之暗面发布了新的模型\uff0c支持工具调用。天气怎么样\uff1f北京 25 度。 Привет мир! कृपया नमस्ते",
    'functions.get_weather:0 {"city": "Beijing", "unit": "celsius"} assistant user system tool ## Return of \t  \r\n\n',
]


@functools.cache
def ranks(entries=700):
    """Ranks by bytes: the merges of a trained vocabulary."""
    vocab = train_bpe(TEXTS * 40, entries)._backend.get_vocab(with_added_tokens=False)
    learnt = sorted((i, letters) for letters, i in vocab.items() if not letters.startswith(("[BOS]", "[EOS]")))
    return {bytes(letter_bytes()[c] for c in letters): rank for rank, (_, letters) in enumerate(learnt)}


def write_rank_file(folder, entries, named=None):
    """Writes ``tiktoken.model`` and ``tokenizer_config.json`` with names by id, by default Kimi K2's, into a folder."""
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in entries.items()]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    return write_names(folder, named or {len(entries) + i: name for i, name in KIMI_NAMES.items()})


def write_names(folder, named):
    """Writes ``tokenizer_config.json`` with names by id; only some are flagged as special, as in the release."""
    added = {str(i): {"content": name, "special": name.startswith("[")} for i, name in named.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return folder


@functools.cache
def tokenizer():
    """The small vocabulary with Kimi K2's special tokens."""
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(write_rank_file(Path(folder), ranks()))


@functools.cache
def thinking_tokenizer():
    """The small vocabulary with the special tokens of Kimi K2.5."""
    media = ("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>")
    names = KIMI_NAMES | dict(enumerate(("<think>", "</think>", *media), 22))
    with tempfile.TemporaryDirectory() as folder:
        named = {len(ranks()) + i: name for i, name in names.items()}
        return load_tokenizer(write_rank_file(Path(folder), ranks(), named))


def special_tokens():
    """Special tokens of the small vocabulary by name."""
    return {name: len(ranks()) + i for i, name in KIMI_NAMES.items()}


def text_of(tokens, some_tokenizer=None):
    """The text of token ids with special tokens spelled out."""
    some_tokenizer = some_tokenizer or tokenizer()
    return b"".join(map(some_tokenizer.token_bytes, tokens)).decode()
