"""Shards that a source names by their folder or URL: tokenised elsewhere, and read where they lie."""

from __future__ import annotations

from k2jax.config.schema import SourceConfig
from k2jax.data.shards import Shards, open_shards
from k2jax.errors import UserError
from k2jax.files.objects.object_path import parse_place
from k2jax.text.tokenizer import Tokenizer


def named_shards(name: str, source: SourceConfig, tokenizer: Tokenizer) -> Shards:
    """Opens the shards of a source of kind ``shards``.

    Args:
        name: of the source.
        source: whose ``path`` is the folder of one corpus.
        tokenizer: of the run, which has to be that of the shards.

    Raises:
        UserError: there are none, they are damaged, of conversations, or of another tokenizer.
    """
    if not source.path:
        raise UserError(f"source {name!r} of kind shards needs a path: set data.sources.{name}.path")
    shards = open_shards(parse_place(source.path))
    if shards.manifest.get("marked"):
        raise UserError(f"source {name!r}: {source.path} holds conversations, and the kind shards reads texts")
    if shards.manifest["tokenizer"]["fingerprint"] != tokenizer.fingerprint:
        raise UserError(f"source {name!r}: {source.path} was written with another tokenizer: set data.tokenizer to it")
    return shards
