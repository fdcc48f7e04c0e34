"""Images and clips in the content of messages, as Kimi K2.5 writes them: markup around one pad for each feature."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

from k2jax.text.messages import Message, content_text, encode_text
from k2jax.text.tokenizer import Tokenizer

MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END = "<|media_begin|>", "<|media_content|>", "<|media_end|>"
MEDIA_PAD = "<|media_pad|>"


class MediaSpan(NamedTuple):
    """A part of a message's content that stands for an image or a clip whose size is known.

    Attributes:
        kind: which of the two.
        features: features of the image, or of each chunk of the clip.
        times: time of each chunk's first frame [seconds]; none for an image.
    """

    kind: Literal["image", "video"]
    features: tuple[int, ...]
    times: tuple[float, ...] = ()


def content_ids(tokenizer: Tokenizer, message: Message, before: str = "") -> list[int]:
    """Token ids of a message's content: texts, and ``MediaSpan`` parts among them.

    An image is ``begin image content pad… end`` and a line feed, which is encoded with the text that follows. A chunk
    of a clip is ``HH:MM:SS.mmm begin video content pad… end``.

    Args:
        tokenizer: the vocabulary; it needs the special tokens of media only where there are some.
        message: a message whose content is text or a list of parts.
        before: text before the content, which is encoded with its first words.

    Raises:
        UserError: a part is neither text nor a MediaSpan, or the vocabulary has no tokens of media.
    """
    content = message.get("content")
    if not isinstance(content, list | tuple) or not any(isinstance(part, MediaSpan) for part in content):
        return encode_text(tokenizer, before + content_text(message))
    ids: list[int] = []
    text = before
    for part in content:
        if not isinstance(part, MediaSpan):
            text += content_text({"content": [part]})
            continue
        for number, features in enumerate(part.features):
            text += clock(part.times[number]) if part.kind == "video" else ""
            ids += [*encode_text(tokenizer, text), *_markup(tokenizer, part.kind, features)]
            text = "\n" if part.kind == "image" else ""
    return [*ids, *encode_text(tokenizer, text)]


def clock(seconds: float) -> str:
    """``HH:MM:SS.mmm``, rounded down; hours begin again after a day."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"


def _markup(tokenizer: Tokenizer, kind: str, features: int) -> list[int]:
    begin, content, end, pad = map(tokenizer.special_id, (MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD))
    return [begin, *tokenizer.encode(kind), content, *[pad] * features, end]
