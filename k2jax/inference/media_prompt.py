"""Prompts with images and video from messages or documents, as an engine takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from k2jax.data.images.processor import ImageProcessor
from k2jax.inference.media import PlacedChunk, place_chunks
from k2jax.text.chat import ChatFormat, chat_format, render_history
from k2jax.text.media import MEDIA_PAD, content_ids
from k2jax.text.messages import Message
from k2jax.text.tokenizer import Tokenizer


class MediaPrompt(NamedTuple):
    """A prompt.

    Attributes:
        tokens: ids, with a pad for each feature.
        media: the images and chunks of video that stand for the pads.
    """

    tokens: list[int]
    media: tuple[PlacedChunk, ...]


def chat_prompt(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    processor: ImageProcessor,
    *,
    thinking: bool = True,
    chat: ChatFormat | None = None,
) -> MediaPrompt:
    """A conversation up to the beginning of the assistant's next message.

    Args:
        messages: in OpenAI's format; images and video as ``ImageProcessor.prepare`` takes them.
        tokenizer: the vocabulary.
        processor: reads the images.
        thinking: whether the answer is to begin with reasoning, in formats that have it.
        chat: the chat format; None is the vocabulary's own.

    Raises:
        UserError: a message or an image is malformed, or the vocabulary has no chat format or no tokens of media.
    """
    prepared = processor.prepare(messages)
    builder = render_history(chat or chat_format(tokenizer), prepared.messages)
    builder.open_assistant(thinking)
    return _placed(builder.tokens, prepared.chunks, tokenizer)


def document_prompt(content: Sequence[Any], tokenizer: Tokenizer, processor: ImageProcessor) -> MediaPrompt:
    """A document that begins with texts and images, without a chat format; see ``chat_prompt``.

    Args:
        content: parts of text, images and video, as in the content of a message.
        tokenizer: the vocabulary.
        processor: reads the images.
    """
    prepared = processor.prepare([{"role": "user", "content": content}])
    ids = [*tokenizer.encode_document(""), *content_ids(tokenizer, prepared.messages[0])]
    return _placed(ids, prepared.chunks, tokenizer)


def _placed(tokens: list[int], chunks: list[Any], tokenizer: Tokenizer) -> MediaPrompt:
    return MediaPrompt(tokens, place_chunks(tokens, chunks, tokenizer.special_id(MEDIA_PAD)) if chunks else ())
