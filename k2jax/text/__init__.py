"""Tokenizers, chat formats, incremental detokenization, and the tool calls in a model's answer. It imports no jax.

In reading order: ``tokenizer``, ``added_tokens``, ``rank_file``, ``gguf_vocabulary`` and ``byte_level`` (vocabularies),
``messages``, ``message_fields`` and ``call_ids`` (messages of any tool in one form), ``chat`` (conversations as ids),
then the formats ``plain_chat``, ``compact_chat``, ``chatml``, ``hermes_chat`` and ``qwen_chat``, ``llama_chat``,
``kimi_chat`` and ``thinking_chat`` with ``tool_types`` over ``common_chat``; ``answers`` (answers as they arrive) with
the parsers ``tool_calls``, ``hermes_calls`` and ``llama_calls`` over ``json_calls``, ``special_token_scanner`` and
``streaming``; ``media`` and ``media_reading`` (images in messages); ``sentences``, ``common_words`` and
``text_content`` (names, numbers and equations of a text).
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
