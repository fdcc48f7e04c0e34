"""A suite with tools through this project's own server, by every API of text, over real connections."""

import asyncio
import json

import pytest

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.registry import oracles
from k2jax.agents.scaffolds.scripted import play
from k2jax.client import TEXT_APIS
from k2jax.evaluate.__main__ import APIS
from k2jax.evaluate.suite import load_suite, suite_tasks
from k2jax.evaluate.suite_run import read_answers
from tests.agents.api.sample import NAME, TOKENIZER, answer_ids, call_ids
from tests.command import run_command
from tests.serve.fakes import FakeEngine, live

COUNT = 3
pytestmark = pytest.mark.usefixtures("shared_verifiers")


@pytest.fixture(scope="module")
def solving():
    """A server whose model plays the oracle's episodes, by what it reads of its prompts."""
    episodes = []
    for task in suite_tasks(load_suite("tool_use", count=COUNT), "", ""):
        played = asyncio.run(play(task, EnvironmentMaker().make(task), oracles.get("tool_use")))
        said = [node.message for node in played.nodes if node.message and node.message["role"] == "assistant"]
        episodes.append((task.instruction[-1]["content"], said))

    def script(request):
        prompt = TOKENIZER.decode(request.prompt)
        [said] = [said for question, said in episodes if question in prompt]
        message = said[prompt.count("## Return of")]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        return call_ids(*calls) if calls else answer_ids(message["content"])

    with live(FakeEngine(script), TOKENIZER, vocab=TOKENIZER.vocab_size, max_length=4096, keys=("sk-9",)) as running:
        yield running


def evaluate(url, api, folder, *words, **environment):
    words = (f"--model={url}", f"--served_model={NAME}", f"--api={api}", f"--workdir={folder}", *words)
    return run_command("k2jax.evaluate", *words, **environment)


def test_the_command_knows_every_api_of_text():
    assert (*TEXT_APIS, "tokens") == APIS


@pytest.mark.parametrize("api", [pytest.param("chat", marks=pytest.mark.slow), "responses", "messages"])
def test_a_suite_with_tools_is_solved_by_text_alone(api, solving, tmp_path):
    name = "ANTHROPIC_API_KEY" if api == "messages" else "OPENAI_API_KEY"
    keys = {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": "", name: "sk-9"}
    asked = len(solving.engine.asked)
    done = evaluate(solving.url, api, tmp_path, "tool_use", f"--count={COUNT}", '--request={"top_p": 0.5}', **keys)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["suites"]["tool_use"]
    assert results["scores"]["accuracy"]["value"] == 1.0 and results["failures"]["machine"] == 0
    asked = solving.engine.asked[asked:]
    assert len(asked) > COUNT and all(sampling.top_p == 0.5 for _, sampling in asked)
    assert results["tokens"]["read"] == sum(len(prompt) for prompt, _ in asked)
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "sk-9" not in written + done.stdout


def test_a_suite_of_one_answer_is_asked_by_completions(solving, tmp_path):
    asked = len(solving.engine.asked)
    suite = tmp_path / "plain.py"
    suite.write_text(
        "from k2jax.evaluate.suite import suite\n\n\ndef get_config():\n    return suite(max_tokens=8, count=1)\n"
    )
    solving.engine.script, script = (lambda request: answer_ids("9")), solving.engine.script
    done = evaluate(solving.url, "completions", tmp_path / "run", str(suite), OPENAI_API_KEY="sk-9")
    solving.engine.script = script
    assert done.returncode == 0, done.stderr
    [answer] = read_answers(tmp_path / "run/plain").values()
    [(prompt, sampling)] = solving.engine.asked[asked:]
    assert TOKENIZER.decode(prompt).endswith(answer.messages[0]["content"])
    assert answer.text.startswith("9") and sampling.max_tokens == 8


def test_a_scaffold_of_a_suite_is_not_passed_over(tmp_path):
    suite = tmp_path / "mine.py"
    suite.write_text(
        "from k2jax.evaluate.suite import suite\n\n\ndef get_config():\n"
        "    return suite(scaffold='chat context=discard_all tokens=99')\n"
    )
    done = evaluate("http://127.0.0.1:1", "messages", tmp_path / "run", str(suite))
    assert done.returncode == 2 and "mine: config.scaffold acts on token ids" in done.stderr


def test_a_wrong_key_ends_the_command_in_a_line_without_it(solving, tmp_path):
    done = evaluate(solving.url, "messages", tmp_path / "key", "tool_use", "--count=1", ANTHROPIC_API_KEY="sk-8")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "sk-8" not in done.stderr
    assert "status 401" in done.stderr
