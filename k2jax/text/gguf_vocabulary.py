"""The tokenizer inside a GGUF file, from its metadata: byte-level BPE only.

A GGUF file only names the pattern that splits text into pieces (``tokenizer.ggml.pre``), so this module lists the
pattern of each supported name. As in llama.cpp, text is not normalized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.errors import UserError
from k2jax.text.byte_level import GPT2, KIMI, LLAMA3, QWEN2, byte_level_json
from k2jax.text.tokenizer import Tokenizer

ORIGIN = "the GGUF file"
"""What errors call it."""
_DIGIT = r"\p{N}"
SPLITS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [_DIGIT, GPT2],
    "qwen2": [QWEN2],
    "llama-bpe": [LLAMA3],
    "kimi-k2": [KIMI],
}
_WHOLE_PIECES_FIRST = {"llama-bpe", "kimi-k2"}
_CONTROL = {2, 3, 5}  # unknown, control and unused entries, which text never encodes to
_USER_DEFINED = 4


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer of a GGUF file.

    Args:
        metadata: the file's key-value pairs; only those under ``tokenizer.ggml.`` are read.

    Raises:
        UserError: the vocabulary is not byte-level BPE, its split pattern is not supported, or a part is missing.
    """
    kind = _get(metadata, "model", str)
    if kind != "gpt2":
        raise UserError(f"{ORIGIN} has a {kind!r} vocabulary; only 'gpt2' (byte-level BPE) is supported")
    split = _get(metadata, "pre", str)
    if split not in SPLITS:
        raise UserError(f"{ORIGIN} splits text as {split!r}, which is not one of {', '.join(SPLITS)}")
    tokens = [str(token) for token in _get(metadata, "tokens", list)]
    if len(set(tokens)) < len(tokens):
        raise UserError(f"{ORIGIN} has the same token twice in its vocabulary; convert the model again")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or any(type(kind) is not int for kind in types):
        raise UserError(f"{ORIGIN} has token types that are no list of numbers; convert the model again")
    if len(types) != len(tokens):
        raise UserError(f"{ORIGIN} has {len(tokens)} tokens but {len(types)} token types; convert the model again")
    begin = _name(tokens, _get(metadata, "bos_token_id", int))
    end = _name(tokens, _get(metadata, "eos_token_id", int))
    control = [token for token, kind in zip(tokens, types, strict=True) if kind in _CONTROL]
    content = byte_level_json(
        {token: i for i, token in enumerate(tokens)},
        _merges(_get(metadata, "merges", list), set(tokens)),
        split=SPLITS[split],
        special=list(dict.fromkeys([*control, begin, end])),
        plain=[token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED],
        whole_pieces_first=split in _WHOLE_PIECES_FIRST,
        around=(begin, end),
    )
    return Tokenizer(content, ORIGIN)


def _get(metadata: Mapping[str, Any], key: str, kind: type) -> Any:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        raise UserError(f"{ORIGIN} has no tokenizer.ggml.{key}; convert the model again with a current llama.cpp")
    try:
        if kind is list and not isinstance(value, list):
            raise TypeError("it is no list")
        return kind(value)
    except (TypeError, ValueError):
        raise UserError(
            f"{ORIGIN} has a tokenizer.ggml.{key} that is not of type {kind.__name__}; convert the model again"
        ) from None


def _name(tokens: list[str], i: int) -> str:
    if not 0 <= i < len(tokens):
        raise UserError(f"{ORIGIN} begins or ends documents with id {i}, outside its {len(tokens)} tokens")
    return tokens[i]


def _merges(lines: list[str], vocab: set[str]) -> list[tuple[str, str]]:
    merges = [tuple(str(line).split(" ")) for line in lines]
    for pair in merges:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab:
            raise UserError(f"{ORIGIN} merges {' '.join(pair)!r}, which its tokens lack; convert the model again")
    return merges
