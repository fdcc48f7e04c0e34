"""Images that tools return: what a model cannot see, or nobody can read, becomes text in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.client import PromptTooLongError
from k2jax.errors import UserError
from k2jax.text.media_reading import IMAGE_PART, MediaReader, start_reading

UNSEEN = "[an image, which this model cannot see]"


def readable(message: Mapping[str, Any], media: MediaReader | None) -> Mapping[str, Any]:
    """A message of a tool as the model is shown it; messages of others, and those without images, are left as they are.

    What a tool returns may be made by the model, which must not end a run by an image that is none: the reason becomes
    text in its place. So does each image for a model of text alone.
    """
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, list):
        return message
    return {**message, "content": [_readable_part(part, media) for part in content]}


def _readable_part(part: Mapping[str, Any], media: MediaReader | None) -> Mapping[str, Any]:
    if part.get("type") != IMAGE_PART:
        return part
    if media is None:
        return {"type": "text", "text": UNSEEN}
    try:
        start_reading(media).read({"role": "tool", "content": [part]})
    except PromptTooLongError:
        return part  # a budget, which ends the episode
    except UserError as error:
        return {"type": "text", "text": f"[an image that cannot be read: {str(error)[:200]}]"}
    return part
