"""One server with scripted answers for the clients of every dialect."""

import pytest

from tests.agents.api.sample import CALLING, TEXT, TOKENIZER, answer_ids, call_ids
from tests.agents.gateway import scripted
from tests.serve.fakes import FakeEngine, live


def script(request):
    """Tool calls for a prompt that declares tools, else text: the seed from 100 to 999, and at temperature 0.25."""
    prompt = TOKENIZER.decode(request.prompt)
    if "malformed" in prompt:
        return call_ids(("get_weather", '{"a": 1e999}'), ("get_weather", "[1]"))
    if "get_weather" in prompt:
        return CALLING
    seed = request.sampling.seed
    return answer_ids(f"seed {seed}" if 100 <= seed < 1000 or request.sampling.temperature == 0.25 else TEXT)


@pytest.fixture(scope="package")
def server():
    with live(FakeEngine(script), TOKENIZER, vocab=TOKENIZER.vocab_size) as running:
        yield running
        running.wait_until_idle()


@pytest.fixture(scope="package")
def thinking_server():
    """Its model reasons ("hm") and then answers ("Yes."), or calls the tool that the prompt declares."""
    tokenizer = scripted.TOKENIZER

    def think(request):
        call = [("functions.get_weather:0", "{}")] * tokenizer.decode(request.prompt).startswith("tool_declare")
        return scripted.reply_ids("hm", "" if call else "Yes.", call)

    with live(FakeEngine(think), tokenizer, vocab=tokenizer.vocab_size) as running:
        yield running
