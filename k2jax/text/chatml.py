"""ChatML, the chat format of many small models."""

from __future__ import annotations

from k2jax.errors import UserError
from k2jax.text.common_chat import BEGINNING, ChatFormat, MessageContext, Tools
from k2jax.text.messages import Message, content_text, tool_calls
from k2jax.text.tokenizer import Tokenizer

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
_NO_TOOLS = (
    "this model's chat format (ChatML) has no tools; omit them, or use a model whose tokenizer has <tool_call> and "
    "</tool_call> (Qwen), or Kimi K2's or Llama 3's tokens"
)


class ChatML(ChatFormat):
    """ChatML: ``<|im_start|>user``, a line break, the content, ``<|im_end|>``, a line break. It has no tools."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer, tokenizer.special_id("<|im_end|>"))
        self.after_end = tokenizer.encode("\n")
        self._start = tokenizer.special_id("<|im_start|>")
        self.generation_prompt = self.direct_prompt = [self._start, *tokenizer.encode("assistant\n")]

    def declare_tools(self, tools: Tools) -> list[int]:
        """Raises UserError, because ChatML does not define tools."""
        raise UserError(_NO_TOOLS)

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the start token, the role on a line, and the content."""
        role, text = message["role"], content_text(message)
        if role == "tool" or tool_calls(message):
            raise UserError(_NO_TOOLS)
        if role == "assistant":  # encoded separately from the prompt, as if it were sampled
            return [*self.generation_prompt, *self._text(text)]
        return [self._start, *self._text(f"{role}\n{text}")]
