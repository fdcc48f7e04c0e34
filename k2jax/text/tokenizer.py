"""The Tokenizer class for any ``tokenizer.json``: trained byte-level BPE, raw bytes, or another model's vocabulary.

Other vocabulary formats are converted to a ``tokenizer.json`` when they are read, so there is one class and one saved
format.

Text cannot inject special tokens: a document that contains the name of a special token encodes to ordinary tokens,
whatever the file's flags say (``added_tokens``). Special tokens enter a sequence by id (``bos``, ``eos``), never
through ``encode``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import difflib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from k2jax.errors import UserError, abbreviate
from k2jax.files.atomic import write_atomic
from k2jax.files.readers import first_line
from k2jax.files.whole import read_whole
from k2jax.text.added_tokens import check_added_tokens, flagged, with_flags_beside
from k2jax.text.byte_level import byte_letters, letter_bytes
from k2jax.text.rank_file import RANK_FILE_NAME, is_rank_file, rank_file_json

FILE_NAME = "tokenizer.json"
CHECKSUM_SUFFIX = ".sha256"
BOS, EOS = "[BOS]", "[EOS]"
MOST_BYTES = 1 << 28  # of a tokenizer's file
SPARE_IDS = 1 << 12  # that a vocabulary may leave out beside as many as it has
_PROBE = "a" * 40 + "! \n 12 \u00e9\u6708"
SMALLEST_BPE = 256 + 2  # all bytes and the two special tokens, so that every text round-trips
_CHATML_START = "<|im_start|>"
_DEEPSEEK = "<\uff5c{}\u2581of\u2581sentence\uff5c>"  # with a full-width vertical bar and a lower one-eighth block
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<bos>", _DEEPSEEK.format("begin"), "<|startoftext|>", "<|endoftext|>")
EOS_NAMES = (EOS, "</s>", "<|end_of_text|>", "<eos>", _DEEPSEEK.format("end"), "<|endoftext|>")


class Tokenizer:
    """Encodes documents to ids and back.

    Attributes:
        vocab_size: number of ids, including added tokens; every id is smaller.
        bos: id that begins every document.
        eos: id that ends every document; some vocabularies use the same token for both.
        fingerprint: sha256 of the ``tokenizer.json`` content, in hexadecimal.
        encoding: names how texts become ids, for caches of them: the fingerprint, and a version where the file's own
            flags would let a text become control tokens, as it did before they were corrected.
    """

    def __init__(self, content: str, origin: str = FILE_NAME):
        """Parses the content of a ``tokenizer.json``; ``origin`` is its name in errors.

        Raises:
            UserError: it is not a tokenizer, or has no beginning-of-document or end-of-document token.
        """
        self._content = content
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        reading = _backend(content, origin)
        parts = json.loads(content)
        check_added_tokens(parts, reading, origin)
        corrected = flagged(parts)
        backend = reading if corrected is None else _backend(corrected, origin)
        self.encoding = self.fingerprint + ("" if corrected is None else ":2")
        begin, end = _names_around(parts)
        self.bos = _special_id(backend, (*begin, *BOS_NAMES), "beginning", origin)
        self.eos = _special_id(backend, (*end, *EOS_NAMES), "end", origin)
        self._backend, self._reading = backend, reading  # control tokens that the file calls ordinary stay readable
        added = backend.get_added_tokens_decoder()
        unknown = _unknown_id(backend, parts["model"])
        special = {i for i, token in added.items() if token.special and i != unknown}
        ends = {i: backend.id_to_token(i) for i in (self.bos, self.eos)}
        self._special = ends | {i: added[i].content for i in special}  # which a normalizer does not change
        self._ids_of_special = {name: i for i, name in self._special.items()}
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size = 1 + max(ids)
        if self.vocab_size > 2 * len(ids) + SPARE_IDS:
            raise UserError(f"{origin} has the id {max(ids)} and only {len(ids)} tokens; fetch it again")
        self._is_special = np.zeros(self.vocab_size, np.bool_)  # by id; np.isin would take longer than encoding does
        self._is_special[list(self._special)] = True
        self._checked([_PROBE], f"{origin} cannot be used")

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text without bos and eos; names of special tokens in it stay text."""
        return self.encode_batch([text])[0].tolist()

    def encode_document(self, text: str) -> list[int]:
        """Returns the token ids of a document's beginning, as in training: ``bos`` comes first.

        ``bos`` is not added if it is also the ``eos``, or the token that begins chat messages: such a vocabulary has no
        beginning-of-document token of its own.
        """
        has_bos = self.bos != self.eos and self.special_name(self.bos) != _CHATML_START
        return [self.bos] * has_bos + self.encode(text)

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Returns the token ids of each text, uint32 ``[tokens]``, without bos and eos, computed in parallel."""
        ids = self._checked(texts, "the tokenizer cannot encode a text")
        return [
            self._encode_in_pieces(text) if self._is_special[array].any() else array
            for text, array in zip(texts, ids, strict=True)
        ]

    def _encode_in_pieces(self, text: str) -> np.ndarray:
        """Ids of a text whose plain encoding contains a special id: each name of a special token is split.

        Some vocabularies have a control token as an ordinary entry as well, which ``encode_special_tokens`` ignores.
        """
        pieces = [text]
        for name in self._special.values():
            splits = [piece.split(name) for piece in pieces]
            pieces = [
                name[1:] * (i > 0) + part + name[:1] * (i < len(parts) - 1)
                for parts in splits
                for i, part in enumerate(parts)
            ]
        return np.concatenate([np.empty(0, np.uint32), *map(self._without_special, pieces)])

    def _without_special(self, piece: str) -> np.ndarray:
        """Ids of a piece, or of its characters where a normalizer makes a special token of it.

        A character that alone becomes a special token has none.
        """
        [ids] = self._checked([piece], "the tokenizer cannot encode a text")
        if self._is_special[ids].any() and len(piece) > 1:
            ids = np.concatenate(self._checked(list(piece), "the tokenizer cannot encode a text"))
        return ids[~self._is_special[ids]]

    def _checked(self, texts: list[str], failure: str) -> list[np.ndarray]:
        """Ids of texts as the library gives them, whose own errors become a UserError of one line."""
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except BaseException as error:  # the library panics, e.g. at a pattern that would not end
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            try:
                "".join(texts).encode()
            except UnicodeEncodeError:
                raise UserError("a text is not UTF-8: it holds half a surrogate pair") from None
            raise UserError(f"{failure}: {abbreviate(first_line(error), 200)}") from None
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids without the tokens that their file flags as special.

        Bytes that are not UTF-8 become U+FFFD.
        """
        return self._reading.decode([int(i) for i in ids], skip_special_tokens=True)

    def has_special(self, name: str) -> bool:
        """Returns whether the vocabulary has a special token of this name."""
        return name in self._ids_of_special

    def special_id(self, name: str) -> int:
        """Returns the id of a special token by its name.

        Raises:
            UserError: the vocabulary has no such special token.
        """
        if name not in self._ids_of_special:
            similar = difflib.get_close_matches(name, self._ids_of_special, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(similar)}?" if similar else f"it has {len(self._special)} others"
            raise UserError(f"the tokenizer has no special token {name}; {hint}")
        return self._ids_of_special[name]

    def special_name(self, i: int) -> str | None:
        """Returns the name of a special token, or None if the id is an ordinary token or outside the vocabulary."""
        return self._special.get(int(i))

    @property
    def is_byte_level(self) -> bool:
        """Whether every token represents the same bytes regardless of its neighbors."""
        return isinstance(self._backend.decoder, decoders.ByteLevel)

    def token_bytes(self, i: int) -> bytes:
        """Returns the bytes of one token, possibly part of a character; none for an id outside the vocabulary.

        Raises:
            UserError: the tokenizer is not byte-level.
        """
        if not self.is_byte_level:
            raise UserError(
                "this tokenizer is not byte-level, so a single token has no fixed bytes; use a byte-level tokenizer"
            )
        letters = self._backend.id_to_token(int(i)) if 0 <= i < self.vocab_size else None
        if letters is None:
            return b""
        to_byte = letter_bytes()
        return bytes(map(to_byte.get, letters)) if all(c in to_byte for c in letters) else letters.encode()

    def save(self, folder: str | os.PathLike) -> None:
        """Writes ``tokenizer.json``, the content behind the fingerprint, into a folder; it is created if missing.

        The fingerprint lies beside it in ``tokenizer.json.sha256``, as ``sha256sum`` writes it; ``load_tokenizer``
        compares the two.
        """
        file = Path(folder) / FILE_NAME
        write_atomic(file, self._content.encode())
        write_atomic(_checksum_file(file), f"{self.fingerprint}  {FILE_NAME}\n")


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Returns the tokenizer of a folder, or of a file of any name: a ``tokenizer.json`` or a tiktoken rank file.

    A rank file is read with Kimi's split pattern and special tokens. A file beside which ``Tokenizer.save`` has left
    its checksum must still have it.

    Raises:
        UserError: there is no tokenizer, it is damaged, or it cannot be used.
    """
    path = Path(path).expanduser()
    file = path / FILE_NAME if path.is_dir() else path
    if not file.exists() and (path / RANK_FILE_NAME).is_file():
        file = path / RANK_FILE_NAME
    form = f"a {FILE_NAME}, a {RANK_FILE_NAME} or the folder of one"
    try:
        raw = read_whole(file, MOST_BYTES)
        _check(file, raw)
        is_ranks = file.name == RANK_FILE_NAME or is_rank_file(raw)
        text = rank_file_json(file, raw) if is_ranks else with_flags_beside(file, raw.decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read the tokenizer {file}: {reason}; give {form}") from None
    return Tokenizer(text, str(file))


def _backend(content: str, origin: str) -> tokenizers.Tokenizer:
    """The library's tokenizer, which encodes names of special tokens as text."""
    try:
        backend = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{origin} is not a tokenizer.json: {first_line(error)}") from None
    if getattr(backend.model, "dropout", None):
        raise UserError(f"{origin} splits words at random (dropout {backend.model.dropout}); set it to null")
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def _checksum_file(file: Path) -> Path:
    return file.with_name(file.name + CHECKSUM_SUFFIX)


def _check(file: Path, raw: bytes) -> None:
    """Raises UserError if a file has not the checksum that lies beside it."""
    checksum = _checksum_file(file)
    if checksum.exists() and checksum.read_bytes().split()[:1] != [hashlib.sha256(raw).hexdigest().encode()]:
        raise UserError(
            f"{file} does not have the sha256 in {checksum.name}: one of them is damaged, so copy the tokenizer again; "
            f"if you have changed it yourself, delete {checksum}"
        )


def train_bpe(texts: Iterable[str], vocab: int, special: Sequence[str] = ()) -> Tokenizer:
    """Trains a byte-level BPE; ids 0 and 1 are ``[BOS]`` and ``[EOS]``, and all 256 bytes are in the vocabulary.

    Args:
        texts: training texts.
        vocab: size of the vocabulary; short texts give fewer entries.
        special: names of further special tokens, from id 2 on.

    Raises:
        UserError: ``vocab`` is too small for all bytes and special tokens.
    """
    if vocab < SMALLEST_BPE + len(special):
        raise UserError(f"a byte-level vocabulary needs at least {SMALLEST_BPE + len(special)} entries, not {vocab}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BOS, EOS, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend.to_str())


def byte_tokenizer(special: Sequence[str] = ()) -> Tokenizer:
    """Returns the tokenizer whose ids are bytes: ``[BOS]`` is 0, ``[EOS]`` is 1, byte b is 2 + b.

    Args:
        special: names of further special tokens, from id 258 on.
    """
    letters = byte_letters()
    vocab = {BOS: 0, EOS: 1} | {letters[byte]: 2 + byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BOS, EOS, *special])
    return Tokenizer(backend.to_str())


def _names_around(parts: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the tokens that the file's template adds before and after a document; each list has at most one."""
    processor = parts.get("post_processor") or {}
    for part in processor.get("processors", [processor]):
        if part.get("type") == "TemplateProcessing" and (single := part["single"]):
            return tuple(
                [piece["SpecialToken"]["id"]] if "SpecialToken" in piece else [] for piece in (single[0], single[-1])
            )
    return [], []


def _unknown_id(backend: tokenizers.Tokenizer, model: dict[str, Any]) -> int | None:
    """The id of the unknown token, which is flagged as special but is a legitimate encoding of text.

    None where bytes spell every text: GPT-2's file names the end of documents, which text must not become.
    """
    if isinstance(backend.decoder, decoders.ByteLevel) and model.get("type") == "BPE":
        return None
    if isinstance(model.get("unk_id"), int):
        return model["unk_id"]
    return backend.token_to_id(model["unk_token"]) if model.get("unk_token") else None


def _special_id(backend: tokenizers.Tokenizer, names: tuple[str, ...], which: str, origin: str) -> int:
    for name in names:
        if (token := backend.token_to_id(name)) is not None:
            return token
    raise UserError(f"{origin} has no {which} of document token: none of {' '.join(names)} is in its vocabulary")
