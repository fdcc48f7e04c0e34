"""Added tokens of somebody else's ``tokenizer.json``: which of them control a model, whatever their flags say.

Files flag some control tokens as ordinary (``"special": false``), Qwen's ``<think>`` and ``<tool_call>`` among them, so
that a text with such a name would encode to them. Here a token is control if any file flags it as special, or if it has
the form of markup. Added words and runs of spaces stay text.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
from pathlib import Path
import re
from typing import Any

import tokenizers

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.whole import read_whole

CONFIG_NAME = "tokenizer_config.json"
_OLD_NAME = "added_tokens.json"  # of files that were written before added_tokens_decoder
_MOST_BYTES = 1 << 26
_MARKUP = re.compile(r"<+[^\s<>]+>+|<[|\uff5c][^<>]*[|\uff5c]>|\[[^\s\[\]]+\]")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a byte that no other entry of a vocabulary spells


def is_markup(name: str) -> bool:
    """Whether a name has the form of a control token: ``<…>``, ``<|…|>`` or ``[…]``."""
    name = name.strip()
    return bool(_MARKUP.fullmatch(name)) and not _BYTE.fullmatch(name)


def check_added_tokens(parts: dict[str, Any], backend: tokenizers.Tokenizer, origin: str) -> None:
    """Raises UserError for added tokens that the tokenizers library takes, some with other ids, and should not."""
    ids: dict[int, str] = {}
    for token in parts.get("added_tokens") or []:
        i, name = token["id"], token["content"]
        if not name:
            raise UserError(f"{origin} has an added token without a name, id {i}; fetch it again")
        if ids.setdefault(i, name) != name:
            raise UserError(f"{origin} gives id {i} to {abbreviate(ids[i])} and {abbreviate(name)}; fetch it again")
        if backend.token_to_id(name) != i:
            raise UserError(f"{origin} gives {abbreviate(name)} the id {i}, which leaves a gap or is another token's")
    if len(set(ids.values())) < len(ids):
        raise UserError(f"{origin} gives one name to two added tokens; fetch it again")


def flagged(parts: dict[str, Any]) -> str | None:
    """The content of a ``tokenizer.json`` with every token of the form of markup flagged; None if all are."""
    plain = [t for t in parts.get("added_tokens") or [] if not t["special"] and is_markup(t["content"])]
    if not plain:
        return None
    names = {token["content"] for token in plain}
    tokens = [token | {"special": token["special"] or token["content"] in names} for token in parts["added_tokens"]]
    return json.dumps(parts | {"added_tokens": tokens}, ensure_ascii=False)


def with_flags_beside(file: Path, content: str) -> str:
    """The content of a ``tokenizer.json`` with the flags of the files beside it, as transformers merges them.

    Raises:
        UserError: a file beside it names another token for an id, or one that it lacks.
    """
    named = [entry for name in (CONFIG_NAME, _OLD_NAME) for entry in _named(file.with_name(name))]
    if not named:
        return content
    try:
        parts = json.loads(content)
        tokens = {token["id"]: token for token in parts.get("added_tokens") or []}
        vocab = parts["model"]["vocab"]
        entries = vocab.items() if isinstance(vocab, dict) else ((entry[0], i) for i, entry in enumerate(vocab))
        names = {i: name for name, i in entries} | {i: token["content"] for i, token in tokens.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return content  # no tokenizer, as who reads it will say
    changed = False
    for config, i, name, special in named:
        if names.get(i) != name:
            there = f"has {abbreviate(names[i])} there" if i in names else "has no such id"
            raise UserError(
                f"{config} names id {i} {abbreviate(name)}, and {file.name} {there}; the two belong to different "
                "tokenizers, so fetch both again"
            )
        if special and i in tokens and not tokens[i]["special"]:
            tokens[i]["special"] = changed = True
    return json.dumps(parts, ensure_ascii=False) if changed else content


def configured_tokens(config: Path) -> dict[int, tuple[str, bool]] | None:
    """Names and flags of ``added_tokens_decoder`` in a ``tokenizer_config.json`` by id; None if there is none.

    Raises:
        UserError: it is damaged.
    """
    if not config.is_file():
        return None
    added = _object(config).get("added_tokens_decoder")
    if added is None:
        return None
    try:
        tokens = {int(i): (token["content"], bool(token.get("special", False))) for i, token in added.items()}
        if not all(isinstance(name, str) and name for name, _ in tokens.values()):
            raise TypeError("a name is no text")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{config} has no readable added_tokens_decoder; fetch it again or delete it") from None
    return tokens


def _named(config: Path) -> Iterator[tuple[Path, int, str, bool]]:
    """The file, id, name and flag of each token that a file beside a ``tokenizer.json`` names."""
    if config.name == CONFIG_NAME:
        for i, (name, special) in (configured_tokens(config) or {}).items():
            yield config, i, name, special
    elif config.is_file():
        for name, i in _object(config).items():
            if type(i) is not int:
                raise UserError(f"{config} gives {abbreviate(name)} no number; fetch it again or delete it")
            yield config, i, name, False


def _object(path: Path) -> dict[str, Any]:
    try:
        values = parse_bounded_json(read_whole(path, _MOST_BYTES))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; fetch it again or delete it") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: not an object; fetch it again or delete it")
    return values
