"""A model card, and token ids of answers that a model could give."""

from k2jax.agents.api import ModelCard
from k2jax.text import chat_format
from tests.text import kimi

NAME = "tiny"
TOKENIZER = kimi.tokenizer()
CARD = ModelCard(NAME, TOKENIZER, TOKENIZER.vocab_size, 256, chat=chat_format(TOKENIZER))
TEXT = "The quick brown fox 月之暗面 🧑‍🚀 end"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
USER = [{"role": "user", "content": "Hi"}]


def special(name):
    return TOKENIZER.special_id(name)


def answer_ids(text):
    """Ids of an answer in plain text, with its end."""
    return [*TOKENIZER.encode(text), special("<|im_end|>")]


def call_ids(*pairs):
    """Ids of an answer's tool calls (name, arguments), with its end."""
    ids = [special("<|tool_calls_section_begin|>")]
    for i, (name, arguments) in enumerate(pairs):
        ids += [special("<|tool_call_begin|>"), *TOKENIZER.encode(f"functions.{name}:{i}")]
        ids += [special("<|tool_call_argument_begin|>"), *TOKENIZER.encode(arguments), special("<|tool_call_end|>")]
    return [*ids, special("<|tool_calls_section_end|>"), special("<|im_end|>")]


CALL_CONTENT = "Let me look."
CALLS = [("get_weather", '{"city": "北京"}'), ("search", '{"q": 1}')]
CALLING = [*TOKENIZER.encode(CALL_CONTENT), *call_ids(*CALLS)]
