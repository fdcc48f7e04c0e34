"""The served model, as far as requests and responses depend on it."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

from k2jax.agents.api.api_error import ApiError
from k2jax.errors import UserError, abbreviate
from k2jax.text.chat import ChatFormat, chat_format
from k2jax.text.constrained import Grammars
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Description of one served model.

    Attributes:
        name: the model's name in requests.
        tokenizer: its tokenizer.
        vocab: rows of its embedding; at least the tokenizer's vocabulary.
        max_length: longest sequence, prompt and response together [tokens].
        chat: its chat format, or None if the tokenizer has none.
        created: start time of the server [Unix seconds].
        media: reads the images of messages; None for a model of text alone.
    """

    name: str
    tokenizer: Tokenizer
    vocab: int
    max_length: int
    _: dataclasses.KW_ONLY
    chat: ChatFormat | None
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    media: MediaReader | None = None

    @functools.cached_property
    def grammars(self) -> Grammars:
        """Those that its answers may have to obey, which its engine has to have, too."""
        return Grammars(self.tokenizer, self.vocab)

    @property
    def json(self) -> dict[str, Any]:
        """The model's entry in ``/v1/models``."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "k2jax",
            "max_model_len": self.max_length,
        }

    def check_name(self, name: str) -> None:
        """Raises ApiError 404 if a client asks for another model."""
        if name != self.name:
            message = f"the model {abbreviate(name)} does not exist; this server has {self.name}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of one token; for a special token, its name."""
        name = self.tokenizer.special_name(token)
        if name is not None:
            return name.encode()
        if self.tokenizer.is_byte_level:
            return self.tokenizer.token_bytes(token)
        return self.tokenizer.decode([token]).encode()

    def token_text(self, token: int) -> str:
        """Returns one token as text; bytes that are not UTF-8 are written in hexadecimal after ``bytes:``."""
        raw = self.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_format_or_none(tokenizer: Tokenizer) -> ChatFormat | None:
    """Returns the tokenizer's chat format, or None if it has none."""
    try:
        return chat_format(tokenizer)
    except UserError:
        return None
