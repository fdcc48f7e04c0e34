"""Byte-level BPE as a ``tokenizer.json``: the letters that represent bytes, and the file from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors

CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = rf"{CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_LETTERS_AND_SPACE = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_LETTERS_AND_SPACE}"
QWEN2 = rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_LETTERS_AND_SPACE}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:{CONTRACTIONS})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:{CONTRACTIONS})?|\p{{N}}{{1,3}}{_LETTERS_AND_SPACE}"
)


@cache
def byte_letters() -> tuple[str, ...]:
    """Returns the letter that represents each byte: the byte if it is printable, otherwise the next from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@cache
def letter_bytes() -> dict[str, int]:
    """Returns the byte that each letter represents, the inverse of ``byte_letters``."""
    return {letter: byte for byte, letter in enumerate(byte_letters())}


def spell(token: bytes) -> str:
    """Returns bytes in byte-level letters, as vocabularies write them."""
    letters = byte_letters()
    return "".join([letters[byte] for byte in token])


def byte_level_json(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    split: Sequence[str],
    special: Sequence[str],
    plain: Sequence[str] = (),
    whole_pieces_first: bool = False,
    around: tuple[str, str] | None = None,
) -> str:
    """Returns the content of a ``tokenizer.json``.

    Args:
        vocab: ids of the entries, written in byte-level letters.
        merges: pairs of entries, in order of precedence.
        split: patterns that split text into pieces, each applied to the pieces of the previous one.
        special: names of control tokens, which text never encodes to; those outside ``vocab`` get the next ids.
        plain: names of added tokens that text can encode to.
        whole_pieces_first: whether a piece that is an entry becomes that entry, regardless of the merges.
        around: names of the tokens that begin and end a document.
    """
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole_pieces_first))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    for names, is_special in ((special, True), (plain, False)):
        backend.add_tokens([tokenizers.AddedToken(name, special=is_special, normalized=False) for name in names])
    if around is not None:
        begin, end = around
        ids = [(name, backend.token_to_id(name)) for name in dict.fromkeys(around)]
        backend.post_processor = processors.TemplateProcessing(single=[begin, "$A", end], special_tokens=ids)
    return backend.to_str()
