"""Data: corpora, tokenizer, and rows."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Literal

from k2jax.config.ranges import (
    IntFromTwo,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Share,
    ShareBelowOne,
)

ChatKind = Literal["auto", "plain", "compact"]
OnCorrupt = Literal["skip", "fail"]
SourceKind = Literal[
    "stdlib",
    "text",
    "jsonl",
    "parquet",
    "lance",
    "archive",
    "huggingface",
    "chat",
    "trajectories",
    "token_rows",
    "image_chat",
    "image_trajectories",
    "synthetic_images",
    "shards",
]
TokenizerKind = Literal["bpe", "file", "bytes"]
CONVERSATIONS = ("chat", "trajectories", "token_rows")
"""Kinds of sources whose records are conversations."""
IMAGE_SOURCES = ("image_chat", "image_trajectories", "synthetic_images")
"""Kinds of sources whose records are conversations with images, for models with vision."""
IN_STORES = ("text", "jsonl", "parquet", "archive", "chat", "token_rows", "image_chat", "shards")
"""Kinds of sources whose files may lie in an object store."""
TRAJECTORIES = ("trajectories", "image_trajectories")
"""Kinds of sources that are stores of trajectories."""


Normalisation = Literal["nfc", "nfkc", "line_ends", "control"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One corpus of the mixture."""

    kind: SourceKind = "stdlib"  #: format
    path: str = ""  #: folder, file or glob, or their URL; for huggingface the data set's name
    licence: str = ""  #: of the texts, for the manifest and the page of corpora
    version: str = ""  #: of the texts, likewise
    field: str = "text"  #: the text column of jsonl, parquet, lance, archive and huggingface records
    subset: str = ""  #: huggingface configuration name
    split: str = "train"  #: huggingface split
    weight: PositiveFloat = 1.0  #: relative share of the mixture, by rows
    max_epochs: NonNegativeFloat = 0.0  #: passes over the source before the others take its share; 0 is no limit
    max_documents: NonNegativeInt = 0  #: read at most this many documents; 0 is all
    exclude: tuple[str, ...] = ()  #: of jsonl: dolma's TAGGER/ATTRIBUTE, or with >=SCORE, that drop a document
    filters: tuple[str, ...] = ()  #: names of filters that a trajectory must pass; empty is all
    media_from: tuple[str, ...] = ()  #: of image_chat: another folder of its files, and how URLs begin that are opened
    pictures: tuple[str, ...] = ()  #: of synthetic_images: kinds of questions; empty is read, describe, count, locate
    side: PositiveInt = 112  #: of synthetic_images: width of a picture, by kind at least 64 to 112 [pixels]
    height: NonNegativeInt = 0  #: of synthetic_images: height, by kind at least 28 to 84; 0 is side [pixels]


def _default_sources() -> dict[str, SourceConfig]:
    """Real text on every machine, without a download."""
    return {"stdlib": SourceConfig()}


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Text to tokens."""

    kind: TokenizerKind = "bpe"  #: bpe is byte-level and trained once on the corpus; file is a tokenizer.json
    path: str = ""  #: for kind=file: a tokenizer.json, or the checkpoint that has it
    vocab: PositiveInt = 4096  #: vocabulary to train, special tokens included, for kind=bpe
    train_bytes: PositiveInt = 16_000_000  #: text read to train on, for kind=bpe [bytes]
    media: bool = False  #: for kind=bytes: adds the special tokens of images and video


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesConfig:
    """Images and clips of conversations; read where ``model.vision`` has layers."""

    patches: PositiveInt = 4096  #: of a row of the tower, which holds any image and chunk of a clip; a multiple of 4
    rows: PositiveFloat = 1.0  #: rows of the tower over rows of tokens: below 1 where few have images, above for clips
    rows_each: NonNegativeInt = 0  #: of the tower, for the images of one row of tokens; 0 is ``rows``, rounded up
    image_patches: PositiveInt = 16384  #: images with more, or that fill more than a row, are reduced
    megapixels: PositiveFloat = 90.0  #: larger images are corrupt records [10^6 pixels]
    megabytes: PositiveFloat = 50.0  #: larger files are corrupt records [10^6 bytes]
    augment: Share = 0.0  #: share of the samples that are augmented, where their record permits
    share: tuple[Share, ...] = ()  #: of the tokens, those of samples with images, by phase; empty is by weight, in rows
    share_from: tuple[ShareBelowOne, ...] = (0.0,)  #: where each phase begins, as a share of all tokens of the run

    @property
    def each(self) -> int:
        """Most rows of the tower for the images of one row of tokens."""
        return self.rows_each or math.ceil(self.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepsConfig:
    """What is done to documents of text before they are tokenised, in this order; conversations stay as they are."""

    normalise: tuple[Normalisation, ...] = ()  #: of characters: a Unicode form, line feeds, no control
    filters: tuple[str, ...] = ()  #: rules that a document must pass, see docs/data.md
    languages: tuple[str, ...] = ()  #: codes such as en of the languages that are kept; empty is all, and no look
    exact_duplicates: bool = False  #: drops a text that a source before, in the order of their names, or this one had
    near_duplicates: ShareBelowOne = 0.0  #: least Jaccard similarity at which one of two is dropped; 0 is no look
    decontaminate: tuple[str, ...] = ()  #: evaluation sets, files or data sets, whose items no document may hold


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where tokens come from and how they are packed."""

    sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=_default_sources)  #: corpora by name
    tokenizer: TokenizerConfig = TokenizerConfig()  #: text to tokens
    sequence_length: IntFromTwo = 512  #: tokens per row
    images: ImagesConfig = ImagesConfig()  #: of conversations
    steps: StepsConfig = StepsConfig()  #: between reading and tokenising
    chat_format: ChatKind = "auto"  #: of conversations; auto is the tokenizer's, plain and compact need no chat tokens
    held_out: ShareBelowOne = 0.05  #: share of documents kept for validation, by a hash of their content
    on_corrupt: OnCorrupt = "skip"  #: what to do about a corrupt record; skip reports and counts it
    workers: NonNegativeInt = 0  #: processes that read, decode and pack batches; 0 is a thread of the training's own
    cache_dir: str = ""  #: folder or URL of tokenised shards and tokenizers; empty is $K2JAX_CACHE or ~/.cache/k2jax
