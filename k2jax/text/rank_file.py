"""Reads a tiktoken rank file: merges recovered from the ranks, with Kimi's split pattern and special tokens.

A rank file lists the bytes and the rank of each entry, but no merges: tiktoken joins the neighbors whose concatenation
has the lowest rank. Only one pair of neighbors can become a given entry: the last two parts when the entry's own bytes
are merged. So one merge per entry is equivalent.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path

from k2jax.errors import UserError
from k2jax.text.added_tokens import CONFIG_NAME, configured_tokens
from k2jax.text.byte_level import KIMI, byte_level_json, spell

RANK_FILE_NAME, MODEL_CONFIG = "tiktoken.model", "config.json"
KIMI_RANKS = 163_584  # of Kimi K2 and its successors
RESERVED = 256  # ids after the ranks that Kimi's models reserve for special tokens
# Kimi K2's names, by distance from the end of the ranks.
KIMI_NAMES = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    254: "[UNK]",
    255: "[PAD]",
}


def is_rank_file(content: bytes) -> bool:
    """Returns whether the first line is an entry of a rank file: base64, a space, a number."""
    token, _, rank = content.split(b"\n", 1)[0].strip().partition(b" ")
    return bool(token) and rank.isdigit()


def rank_file_json(file: Path, content: bytes) -> str:
    """Returns the ``tokenizer.json`` content of a rank file.

    The names of special tokens come from ``tokenizer_config.json`` in the same folder. Only a file on its own that has
    as many ranks as Kimi K2's gets Kimi K2's.

    Raises:
        UserError: a line is not an entry, a rank or a byte is missing, the special tokens have no names, or those or
            the model beside it do not fit.
    """
    ranks = _read_ranks(file, content)
    names = _special_names(file, len(ranks))
    merges = [(spell(left), spell(right)) for left, right in merges_of(ranks)]
    vocab = {spell(token): rank for token, rank in ranks.items()}
    return byte_level_json(vocab, merges, split=[KIMI], special=names, whole_pieces_first=True)


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Returns the pair from which each entry is merged, lowest rank first, without entries that no merge reaches."""
    entries = (_last_pair(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
    return [pair for pair in entries if pair is not None]


def _last_pair(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The last two parts when tiktoken merges an entry's bytes, or None if more parts remain."""
    parts = [token[i : i + 1] for i in range(len(token))]
    pairs = [ranks.get(token[i : i + 2]) for i in range(len(token) - 1)]  # rank of parts[i] + parts[i + 1]
    while len(parts) > 2:
        present = [rank for rank in pairs if rank is not None]
        if not present:
            return None
        lowest = pairs.index(min(present))
        parts[lowest : lowest + 2] = [parts[lowest] + parts[lowest + 1]]
        del pairs[lowest]
        for i in (lowest - 1, lowest):
            if 0 <= i < len(pairs):
                pairs[i] = ranks.get(parts[i] + parts[i + 1])
    return parts[0], parts[1]


def _read_ranks(file: Path, content: bytes) -> dict[bytes, int]:
    ranks = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            entry = base64.b64decode(token, validate=True)
            if not entry or not rank.isdigit() or ranks.setdefault(entry, int(rank)) != int(rank):
                raise ValueError("no bytes, no number, or a second rank")
        except (ValueError, binascii.Error):
            raise UserError(f"{file} line {number} is not a base64 token and its rank; fetch the file again") from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise UserError(f"{file} does not rank its entries 0, 1, 2 and so on, each once; fetch the file again")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise UserError(f"{file} has no entry for byte {missing[0]}, so it cannot spell every text; fetch it again")
    return ranks


def _special_names(file: Path, base: int) -> list[str]:
    """Names of the ids from ``base`` on; unnamed ids are called ``<|reserved_token_ID|>``."""
    config = file.with_name(CONFIG_NAME)
    _check_model(file, base)
    tokens = configured_tokens(config)
    if tokens is None:
        _check_unnamed(file, base)
        tokens = {base + i: (name, True) for i, name in KIMI_NAMES.items()}
    named = {i: name for i, (name, _) in tokens.items()}
    outside = [i for i in named if not base <= i < base + RESERVED]
    if outside or base not in named:
        what = f"names id {outside[0]}" if outside else f"does not name id {base}"
        raise UserError(
            f"{config} {what}, but the special tokens of {file.name} are {base} to {base + RESERVED - 1}; one of the "
            "two is cut off or belongs to another tokenizer, so fetch both again"
        )
    if len(set(named.values())) < len(named):
        raise UserError(f"{config} gives the same name to two ids; fetch the file again")
    return [named.get(i, f"<|reserved_token_{i}|>") for i in range(base, base + RESERVED)]


def _check_unnamed(file: Path, base: int) -> None:
    """Raises UserError unless a rank file without names is Kimi K2's, on its own.

    Later models have the same ranks and other special tokens, so the folder of a model has to name its own.
    """
    if base != KIMI_RANKS or file.with_name(MODEL_CONFIG).exists():
        raise UserError(
            f"{file} does not name its special tokens, which follow {base:,} ranks; put the {CONFIG_NAME} of its "
            "release, with added_tokens_decoder, beside it"
        )


def _check_model(file: Path, base: int) -> None:
    """Raises UserError if the model beside a rank file has a vocabulary of another size."""
    path = file.with_name(MODEL_CONFIG)
    if not path.is_file():
        return
    try:
        values = json.loads(path.read_bytes())
        size = values.get("text_config", values).get("vocab_size")
    except (OSError, ValueError, AttributeError, RecursionError):
        return  # whoever reads the model says what is wrong with it
    if type(size) is int and size != base + RESERVED:
        raise UserError(
            f"{file} has {base:,} ranks and {RESERVED} special tokens, and {path.name} beside it a vocab_size of "
            f"{size:,}; fetch the cut-off one again"
        )
