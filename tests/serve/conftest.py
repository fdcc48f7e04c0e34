"""One server with scripted answers for the clients of every dialect."""

import pytest

from tests.agents.api.sample import CALLING, TEXT, TOKENIZER, answer_ids, call_ids
from tests.serve.fakes import FakeEngine, live
from tests.text.kimi import thinking_tokenizer


def script(request):
    """Tool calls for a prompt that declares tools; otherwise text, another one for a seed of 100 to 999."""
    prompt = TOKENIZER.decode(request.prompt)
    if "malformed" in prompt:
        return call_ids(("get_weather", '{"a": 1e999}'), ("get_weather", "[1]"))
    if "get_weather" in prompt:
        return CALLING
    seed = request.sampling.seed
    return answer_ids(f"seed {seed}" if 100 <= seed < 1000 else TEXT)


@pytest.fixture(scope="package")
def server():
    with live(FakeEngine(script), TOKENIZER, vocab=TOKENIZER.vocab_size) as running:
        yield running
        running.wait_until_idle()


@pytest.fixture(scope="package")
def thinking_server():
    """Its model reasons ("hm") and then answers ("Yes.")."""
    tokenizer = thinking_tokenizer()
    answer, end = map(tokenizer.special_id, ("</think>", "<|im_end|>"))
    ids = [*tokenizer.encode("hm"), answer, *tokenizer.encode("Yes."), end]
    with live(FakeEngine(lambda request: ids), tokenizer, vocab=tokenizer.vocab_size) as running:
        yield running
