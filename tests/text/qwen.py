"""Small vocabularies with the special tokens of Qwen2.5, Qwen3 and Llama 3, and what ``renderers`` asks of them."""

import functools
from pathlib import Path
import re
import tempfile

from k2jax.text import chat_format, load_tokenizer
from tests.text import kimi

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOLS = ("<tool_call>", "</tool_call>")
QWEN3 = (*CHATML, *TOOLS, "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    "<|python_tag|>",
)


@functools.cache
def tokenizer(names=QWEN3):
    """The small vocabulary of Kimi K2's tests with other special tokens."""
    with tempfile.TemporaryDirectory() as folder:
        named = {len(kimi.ranks()) + i: name for i, name in enumerate(names)}
        return load_tokenizer(kimi.write_rank_file(Path(folder), kimi.ranks(), named))


QWEN = chat_format(tokenizer())
HERMES = chat_format(tokenizer((*CHATML, *TOOLS)))
LLAMA_3 = chat_format(tokenizer(LLAMA))


class OracleTokenizer:
    """What ``renderers`` asks of a tokenizer: tags that it spells in its texts are special tokens."""

    unk_token_id = None

    def __init__(self, names=QWEN3):
        spelled = [name for name in (*TOOLS, "<think>", "</think>") if name in names]
        self._tokenizer = tokenizer(names)
        self._names = re.compile("(" + "|".join(spelled) + ")" if spelled else r"(?!)")

    def convert_tokens_to_ids(self, token):
        return self._tokenizer.special_id(token) if self._tokenizer.has_special(token) else None

    def encode(self, text, add_special_tokens=False):
        ids = []
        for number, part in enumerate(self._names.split(text)):
            ids += [self._tokenizer.special_id(part)] if number % 2 else self._tokenizer.encode(part)
        return ids

    def decode(self, ids, skip_special_tokens=False):
        return kimi.text_of(ids, self._tokenizer)


def special_ids(text, names=QWEN3):
    """Ids of a text in which the names of special tokens are these tokens."""
    some, pattern = tokenizer(names), re.compile("(" + "|".join(map(re.escape, names)) + ")")
    parts = enumerate(pattern.split(text))
    return [i for number, part in parts for i in ([some.special_id(part)] if number % 2 else some.encode(part))]
