"""One Tokenizer class over any ``tokenizer.json``: trained byte-level BPE, raw bytes, or somebody else's vocabulary.

Text is only ever text: a document that spells out a special token encodes to ordinary tokens. Special tokens enter a
sequence by id (``bos``, ``eos``), never through ``encode``.
"""

from __future__ import annotations

from collections.abc import Iterable
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from k2jax.errors import UserError

FILE_NAME = "tokenizer.json"
BOS, EOS = "[BOS]", "[EOS]"
SMALLEST_BPE = 256 + 2  # every byte and the two special tokens, so that any text round-trips
_DEEPSEEK = "<\uff5c{}\u2581of\u2581sentence\uff5c>"  # a full-width bar and a low line
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<bos>", _DEEPSEEK.format("begin"), "<|startoftext|>", "<|endoftext|>")
EOS_NAMES = (EOS, "</s>", "<|end_of_text|>", "<eos>", _DEEPSEEK.format("end"), "<|endoftext|>")


class Tokenizer:
    """Encodes documents to ids and back.

    Attributes:
        vocab_size: number of ids, added tokens included; every id is smaller.
        bos: id that begins every document.
        eos: id that ends every document; some vocabularies use one token for both.
        fingerprint: sha256 of the ``tokenizer.json`` content, in hexadecimal.
    """

    def __init__(self, content: str, origin: str = FILE_NAME):
        """Parses the content of a ``tokenizer.json``; ``origin`` names it in errors.

        Raises:
            UserError: when it is not a tokenizer, or has no beginning or end of document token.
        """
        self._content = content
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        try:
            backend = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{origin} is not a tokenizer.json: {str(error).splitlines()[0]}") from None
        self.bos = _special_id(backend, BOS_NAMES, "beginning", origin)
        self.eos = _special_id(backend, EOS_NAMES, "end", origin)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        special = {i for i, token in added.items() if token.special and i != _unknown_id(backend)}
        self._special = {i: backend.id_to_token(i) for i in special | {self.bos, self.eos}}
        self._special_ids = np.array(sorted(self._special), np.uint32)
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without bos and eos; special-token text in it stays text."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Token ids of each text, uint32 ``[tokens]``, without bos and eos; texts are encoded in parallel."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array(encoding.ids, np.uint32) for encoding in encodings]
        return [
            self._encode_in_pieces(text) if np.isin(array, self._special_ids).any() else array
            for text, array in zip(texts, ids, strict=True)
        ]

    def _encode_in_pieces(self, text: str) -> np.ndarray:
        """Ids of a text whose plain encoding holds a special id: cut inside each spelled-out special token.

        Some vocabularies spell a control token as an ordinary entry, which the library's switch does not cover.
        """
        pieces = [text]
        for name in self._special.values():
            cut = [piece.split(name) for piece in pieces]
            pieces = [
                name[1:] * (i > 0) + part + name[:1] * (i < len(parts) - 1)
                for parts in cut
                for i, part in enumerate(parts)
            ]
        encodings = self._backend.encode_batch_fast(pieces, add_special_tokens=False)
        ids = np.array([i for encoding in encodings for i in encoding.ids], np.uint32)
        return ids[~np.isin(ids, self._special_ids)]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; special tokens are left out, and bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes ``tokenizer.json`` into a folder, created when missing; byte for byte what the fingerprint covers."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / FILE_NAME).write_bytes(self._content.encode())


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """The tokenizer in a folder, or in a file of any name.

    Raises:
        UserError: when there is none, or it cannot be used.
    """
    path = Path(path).expanduser()
    file = path / FILE_NAME if path.is_dir() else path
    try:
        content = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read the tokenizer {file}: {reason}; give a tokenizer.json or its folder") from None
    return Tokenizer(content, str(file))


def train_bpe(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Trains a byte-level BPE; ids 0 and 1 are ``[BOS]`` and ``[EOS]``, all 256 bytes are in the vocabulary.

    Args:
        texts: what to train on.
        vocab: size of the vocabulary; little text gives fewer entries.

    Raises:
        UserError: when ``vocab`` has no room for every byte.
    """
    if vocab < SMALLEST_BPE:
        raise UserError(f"a byte-level vocabulary needs at least {SMALLEST_BPE} entries, not {vocab}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend.to_str())


def byte_tokenizer() -> Tokenizer:
    """The tokenizer whose ids are bytes: ``[BOS]`` 0, ``[EOS]`` 1, byte b at 2 + b."""
    letters = _byte_letters()
    vocab = {BOS: 0, EOS: 1} | {letters[byte]: 2 + byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BOS, EOS])
    return Tokenizer(backend.to_str())


def _byte_letters() -> dict[int, str]:
    """The letter that byte-level tokenizers write for each byte: itself when printable, else the next from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _unknown_id(backend: tokenizers.Tokenizer) -> int | None:
    """The id for what the vocabulary lacks; special by flag, but a legitimate encoding of text."""
    model = json.loads(backend.to_str())["model"]
    if isinstance(model.get("unk_id"), int):
        return model["unk_id"]
    return backend.token_to_id(model["unk_token"]) if model.get("unk_token") else None


def _special_id(backend: tokenizers.Tokenizer, names: tuple[str, ...], which: str, origin: str) -> int:
    for name in names:
        if (token := backend.token_to_id(name)) is not None:
            return token
    raise UserError(f"{origin} has no {which} of document token: none of {' '.join(names)} is in its vocabulary")
