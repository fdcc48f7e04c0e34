"""Tokenizers, chat formats, incremental detokenization, and the tool calls in a model's answer. It imports no jax.

In reading order: ``tokenizer``, ``added_tokens``, ``rank_file``, ``gguf_vocabulary`` and ``byte_level`` (vocabularies),
``messages``, ``message_fields`` and ``call_ids`` (messages of any tool in one form), ``chat`` (conversations as ids),
then the formats ``plain_chat``, ``compact_chat``, ``chatml``, ``kimi_chat`` and ``thinking_chat`` over ``common_chat``;
``tool_types`` and ``tool_calls``, ``streaming`` and ``special_token_scanner`` (answers as they arrive), ``media`` and
``media_reading`` (images in messages).
"""

from k2jax.text.chat import ChatBuilder, ChatFormat, chat_format, configured_chat, render_history
from k2jax.text.gguf_vocabulary import gguf_tokenizer
from k2jax.text.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer, train_bpe
from k2jax.text.tool_calls import ToolCallParser

__all__ = [
    "ChatBuilder",
    "ChatFormat",
    "Tokenizer",
    "ToolCallParser",
    "byte_tokenizer",
    "chat_format",
    "configured_chat",
    "gguf_tokenizer",
    "load_tokenizer",
    "render_history",
    "train_bpe",
]
