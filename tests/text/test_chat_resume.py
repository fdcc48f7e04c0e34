"""A conversation that goes on from its tokens alone is the one that was never left."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.text import ChatBuilder, byte_tokenizer, configured_chat
from tests.text import kimi
from tests.text.test_chat import CHATML, KIMI

COMPACT = configured_chat(byte_tokenizer(), "compact")
TEXTS = ("Go", "On", "Yes.")
CALLS = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


def told(chat, turns, ends):
    """A builder after so many turns of the user and sampled answers, with the roles of its messages."""
    builder, roles = ChatBuilder(chat), []
    for turn in range(turns):
        builder.add({"role": "user", "content": TEXTS[turn % 3]})
        builder.open_assistant()
        call = [kimi.tokenizer().special_id("<|tool_call_begin|>")] if chat is KIMI else []
        builder.append_sampled([65, 66, *call, *([chat.end] if ends[turn] else [])])
        roles += ["user", "assistant"]
    return builder, roles


@pytest.mark.parametrize("chat", [KIMI, CHATML, COMPACT], ids=["kimi", "chatml", "compact"])
@settings(max_examples=20)
@given(turns=st.integers(0, 3), ends=st.lists(st.booleans(), min_size=3, max_size=3), answered=st.booleans())
def test_a_resumed_conversation_goes_on_as_the_whole_one(chat, turns, ends, answered):
    """Answers may have been cut off before their end, and a conversation may not have begun."""
    whole, roles = told(chat, turns, ends)
    if not answered and turns:
        whole, roles = told(chat, turns - 1, ends)
        whole.add({"role": "user", "content": "Once more"})
        roles = [*roles, "user"]
    is_open = bool(turns) and answered
    known = np.array(whole.tokens, np.int32)
    resumed = ChatBuilder.resume(chat, list(whole.tokens), roles, is_open)
    apart = ChatBuilder.resume(chat, known, roles, is_open, leaves_out=True)
    for builder in (whole, resumed, apart):
        if is_open or not turns:
            builder.add({"role": "user", "content": "And now?"})
            builder.add({"role": "assistant", "content": "", "tool_calls": CALLS if chat is KIMI else []})
        builder.open_assistant()
    assert resumed.tokens == whole.tokens == [*known.tolist(), *apart.tokens]
    assert chat.count_calls(np.array(whole.tokens, np.int32)) == chat.count_calls(whole.tokens)
