"""Conversations of a source as token ids with a mark on what the assistant wrote, which alone is trained on.

Written conversations are encoded by the chat format of the run; sampled ones keep the ids that were sampled. The split
is decided by the tokens that precede the assistant's first one: all answers to a prompt are on one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
from typing import Any

import numpy as np

from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.chat_records import check_answers, messages_and_tools, unread_fields
from k2jax.data.sources import CorruptRecords
from k2jax.data.split import document_hash
from k2jax.data.tokenised import Tokenised, marked, outside_vocabulary
from k2jax.errors import UserError
from k2jax.files.content import FileRange
from k2jax.files.readers import json_lines
from k2jax.text.chat import ChatBuilder, ChatFormat, configured_chat, render_history
from k2jax.text.media import MEDIA_PAD
from k2jax.text.messages import split_reasoning
from k2jax.text.tokenizer import Tokenizer
from k2jax.trajectory.filters import demonstrated_paths
from k2jax.trajectory.store import read_trajectories


def tokenised_chats(
    source: SourceConfig, parts: Iterable[FileRange], config: DataConfig, tokenizer: Tokenizer, report: CorruptRecords
) -> Iterator[Tokenised]:
    """Encodes the conversations of JSON lines ``{"messages": [...], "tools": [...]}``.

    A line may also be ``{"prompt": "...", "completion": "..."}``: one message of the user, one of the assistant.

    Args:
        source: is not used.
        parts: its files, or parts of them.
        config: the ``data`` group of a configuration.
        tokenizer: the vocabulary.
        report: receives conversations that are malformed, too long for a row, or without a word of the assistant.

    Raises:
        UserError: the vocabulary has no chat format.
    """
    chat = configured_chat(tokenizer, config.chat_format)
    for path, begin, end, _ in parts:
        for _, where, record, size in json_lines(path, report, begin, end):
            try:
                parts = branches(*messages_and_tools(record), chat)
                yield from checked_branches(parts, chat, size, config.sequence_length, tokenizer)
                report.count_unread(unread_fields(record))
            except UserError as error:
                report(where, str(error))


def tokenised_trajectories(
    source: SourceConfig, parts: Iterable[FileRange], config: DataConfig, tokenizer: Tokenizer, report: CorruptRecords
) -> Iterator[Tokenised]:
    """The sampled conversations of a trajectory store that pass the source's filters: rejection sampling.

    Nothing is encoded again: ids and marks are those of the trajectories. Every path from the root to a leaf is a
    conversation; a token that two paths share is trained on in the first of them.

    Args:
        source: without ``filters`` a trajectory must pass all filters that there are.
        parts: its files.
        config: the ``data`` group of a configuration.
        tokenizer: the vocabulary that the ids are of.
        report: receives conversations that are too long for a row or show images, and an incomplete last record.

    Raises:
        UserError: there is no such filter, or a file is damaged.
    """
    chosen = {"filters": source.filters} if source.filters else {}
    pad = tokenizer.special_id(MEDIA_PAD) if tokenizer.has_special(MEDIA_PAD) else None
    for file, *_ in parts:
        trajectories = read_trajectories(file, lambda line, file=file: report(str(file), line))
        for demonstrated in demonstrated_paths(trajectories, **chosen):
            (trajectory, row), written = demonstrated, demonstrated.written
            ids, prompt = row.tokens, row.tokens[: np.argmax(written)]
            try:
                if pad is not None and (ids[~written] == pad).any():
                    raise UserError("it shows images; a source of kind image_trajectories reads them")
                size = ids.astype(np.int32).nbytes
                yield checked(ids, row.mask, prompt, size, config.sequence_length, tokenizer)
            except UserError as error:
                report(f"{file}, trajectory {tuple(trajectory.key)}", str(error))


def branches(messages: list[Any], tools: list[Any] | None, chat: ChatFormat) -> list[ChatBuilder]:
    """The sequences to train on: one, or where reasoning is stripped from what has ended, one for every tool cycle.

    Each message of the assistant has its marks in one of them: in the sequence of its own cycle, where its reasoning is
    as it wrote it, after a history as a thinking model reads it. A cycle of which nothing is trained has no sequence.

    Raises:
        UserError: a message is malformed or empty, or the format does not support it.
    """
    check_answers(messages, chat)
    whole = render_history(chat, messages, tools, strip=False)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not chat.thinks or not any(split_reasoning(messages[i])[0] for i in answers):
        return [whole]
    parts = []
    for begin, end in itertools.pairwise([*chat.cycles(messages), len(messages)]):
        if any(begin <= i < end for i in answers):
            builder = render_history(chat, chat.as_history(messages[:end], thinking=False)[:begin], tools, strip=False)
            known = len(builder.tokens)
            for message in messages[begin:end]:
                builder.add(message)
            builder.by_assistant[:known] = [False] * known
            parts += [builder] * any(builder.by_assistant)
    return parts or [whole]


def checked_branches(
    parts: list[ChatBuilder], chat: ChatFormat, size: int, longest: int, tokenizer: Tokenizer
) -> list[Tokenised]:
    """The sequences of one conversation to store, all in the split of its first prompt; see ``checked``."""
    first = parts[0]
    prompt = first.tokens[: first.first_answer]
    if prompt[-len(chat.direct_prompt) :] == chat.direct_prompt:  # a prompt is one with or without reasoning after it
        prompt = prompt[: len(prompt) - len(chat.direct_prompt) + len(chat.generation_prompt)]
    return [
        checked(np.array(part.tokens), np.array(part.by_assistant), np.array(prompt), size, longest, tokenizer)
        for part in parts
    ]


def checked(
    ids: np.ndarray, trained: np.ndarray, prompt: np.ndarray, size: int, longest: int, tokenizer: Tokenizer
) -> Tokenised:
    """A conversation to store.

    Args:
        ids: token ids ``[tokens]``.
        trained: bool ``[tokens]``, the assistant's.
        prompt: ids before the first answer, which decide the split.
        size: UTF-8 bytes of its text.
        longest: tokens of a row, which holds whole conversations.
        tokenizer: the vocabulary.

    Raises:
        UserError: it does not fit a row, has nothing to train on, or holds a token outside the vocabulary.
    """
    check_sequence(ids, trained, longest)
    if (wrong := outside_vocabulary(ids, tokenizer)) is not None:
        raise UserError(f"the token {wrong}, which the vocabulary of {tokenizer.vocab_size:,} does not have")
    return Tokenised(marked(ids, trained), size, document_hash(prompt.astype("<i4").tobytes()))


def check_sequence(ids: np.ndarray, trained: np.ndarray, longest: int) -> None:
    """Raises UserError where a sequence does not fit a row of ``longest`` tokens, or has nothing to train on."""
    if len(ids) > longest:
        raise UserError(f"{len(ids):,} tokens, more than the {longest:,} of config.data.sequence_length")
    if not trained[1:].any():  # nothing predicts the first token
        raise UserError("nothing that the assistant wrote")
