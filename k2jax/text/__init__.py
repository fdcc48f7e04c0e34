"""Tokenizers, chat formats, incremental detokenization, and the tool calls in a model's answer. It imports no jax."""

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
