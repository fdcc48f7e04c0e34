"""Toolsets: schemas of functions, wrong calls, the calculator, the store, and search over a corpus."""

import asyncio
from collections import Counter
import json
import math
import re
import sqlite3
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, create_model
import pytest

from k2jax.agents import Task
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.registry import toolsets
from k2jax.agents.sandbox import SandboxError
from k2jax.agents.toolsets import ToolError, Workplace
from k2jax.agents.toolsets.bm25 import BM25Index
from k2jax.agents.toolsets.calculator import calculator
from k2jax.agents.toolsets.calling import RESULT_LIMIT, Toolbox, positional
from k2jax.agents.toolsets.functions import FunctionTools, declared_function
from k2jax.agents.toolsets.types import declared
from k2jax.errors import UserError

TASK = Task("t", "d", ({"role": "user", "content": "?"},), "v", metadata={"store": {"a": "1"}})

LOOP = asyncio.new_event_loop()


def call(toolbox, name, arguments):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return LOOP.run_until_complete(
        toolbox.call({"id": "0", "type": "function", "function": {"name": name, "arguments": text}})
    )


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C", tags: list[str] | None = None) -> str:
    """Tells the weather
    of a city.

    It invents it.

    Args:
        city: its name,
            in any language.
        days: how many.

    Returns:
        A sentence.
    """
    return f"{city} {days} {unit} {tags}"


def test_a_functions_schema_has_its_summary_its_parameters_and_their_descriptions():
    function = declared_function(weather)["function"]
    assert (function["name"], function["description"]) == ("weather", "Tells the weather of a city.")
    properties = function["parameters"]["properties"]
    assert properties["city"] == {"type": "string", "description": "its name, in any language."}
    assert properties["days"] == {"type": "integer", "description": "how many.", "default": 1}
    assert function["parameters"]["required"] == ["city"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["C", "F", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)
MODEL = create_model(
    "Weather",
    __config__={"extra": "forbid", "strict": True},
    city=(str, ...),
    days=(int, 1),
    unit=(Literal["C", "F"], "C"),
    tags=(list[str] | None, Field(default=None)),
)


@settings(max_examples=60)
@given(st.fixed_dictionaries({}, optional={name: JSON for name in ("city", "days", "unit", "tags", "more")}))
def test_arguments_are_accepted_exactly_where_pydantic_accepts_them(arguments):
    try:
        MODEL.model_validate(arguments)
        valid = True
    except ValueError:
        valid = False
    result = call(Toolbox([FunctionTools([weather])]), "weather", arguments)
    assert result.is_error != valid
    assert not valid or result.content == weather(**arguments)


@pytest.mark.parametrize("parameter", ["x", "x: bytes", "*x: int", "x: dict[int, str]"])
def test_a_function_that_no_schema_describes_is_refused(parameter):
    names = {}
    exec(f"def tool({parameter}): ...", names)
    with pytest.raises(UserError, match="tool 'tool'"):
        declared_function(names["tool"])


@settings(max_examples=40)
@given(st.sampled_from(["calc", "get", "set", "nothing", ""]), st.text() | JSON.map(json.dumps))
def test_whatever_the_model_writes_is_answered(name, arguments):
    store = toolsets.make("store")
    LOOP.run_until_complete(store.open(Workplace(TASK, 0)))
    result = call(Toolbox([calculator(), store]), name, arguments)
    assert isinstance(result.content, str) and result.is_error == result.content.startswith("Error: ")


def test_arguments_that_are_no_json_missing_or_wrong_are_explained():
    toolbox = Toolbox([calculator(), FunctionTools([weather])])
    assert "not JSON" in call(toolbox, "calc", '{"operation": ').content
    assert "not JSON" in call(toolbox, "weather", '{"city": "x", "days": NaN}').content
    assert "'operation' is a required property" in call(toolbox, "calc", "{}").content
    assert "arguments['days'] of weather are wrong: 'x' is not of type" in call(toolbox, "weather", '"y x"').content
    assert "did you mean 'calc'" in call(toolbox, "calk", "{}").content
    assert call(toolbox, "calc", "[" * 100_000).is_error
    assert LOOP.run_until_complete(toolbox.call({"function": None})).is_error


def test_arguments_without_names_are_words_in_the_order_of_the_parameters():
    schema = declared_function(weather)["function"]["parameters"]
    assert positional("Rome 3 F", schema) == {"city": "Rome", "days": 3, "unit": "F"}
    assert positional("", schema) == {}
    assert positional("a b c", declared_function(calculator()._functions["calc"])["function"]["parameters"]) == {
        "operation": "a b c"
    }


class Broken:
    needs_sandbox, read_only = False, ()
    tools = (declared("fail", "", {"type": "object"}),)

    def __init__(self, error):
        self._error = error

    async def call(self, name, arguments):
        raise self._error


def test_a_tool_that_breaks_down_is_a_failure_of_the_infrastructure_and_a_wrong_call_is_not():
    with pytest.raises(EnvironmentFailedError, match="KeyError"):
        call(Toolbox([Broken(KeyError("x"))]), "fail", "{}")
    with pytest.raises(SandboxError):
        call(Toolbox([Broken(SandboxError("gone"))]), "fail", "{}")
    assert call(Toolbox([Broken(ToolError("no"))]), "fail", "{}") == ("Error: no", True)

    def divide(a: int, b: int) -> float:
        return a / b

    assert call(Toolbox([FunctionTools([divide])]), "divide", {"a": 1, "b": 0}).content.startswith("Error: ZeroDiv")


def test_a_schema_that_refers_to_another_document_fetches_nothing(monkeypatch):
    import urllib.request

    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: pytest.fail("fetched"))
    remote = Broken(ToolError("no"))
    remote.tools = (declared("fail", "", {"$ref": "http://localhost:1/schema.json"}),)
    with pytest.raises(EnvironmentFailedError):
        call(Toolbox([remote]), "fail", "{}")


def test_two_tools_of_one_name_and_parameters_that_are_no_schema_are_refused():
    with pytest.raises(UserError, match="two toolsets have a tool 'calc'"):
        Toolbox([calculator(), calculator()])
    wrong = Broken(None)
    wrong.tools = (declared("fail", "", {"type": "thing"}),)
    with pytest.raises(UserError, match="no JSON schema"):
        Toolbox([wrong])


def test_a_long_result_keeps_its_beginning_and_end_and_has_no_half_characters():
    def flood(text: str) -> str:
        return "a" * 50_000 + text + "\ud800"

    content = call(Toolbox([FunctionTools([flood])]), "flood", {"text": "z"}).content
    assert content.startswith("aaa") and content.endswith("z?") and len(content) < RESULT_LIMIT + 100


@settings(max_examples=30)
@given(st.integers(-(10**17), 10**17), st.sampled_from("+-*"), st.integers(-(10**17), 10**17))
def test_the_calculator_computes_exactly(a, sign, b):
    assert call(Toolbox([calculator()]), "calc", {"operation": f"{a}{sign}{b}"}).content == str(
        eval(f"({a}){sign}({b})")
    )


@pytest.mark.parametrize("operation", ["2**9", "1+2+3", "", "a+b", "1 + 2", "9" * 30 + "*2"])
def test_the_calculator_refuses_what_is_no_operation(operation):
    assert call(Toolbox([calculator()]), "calc", {"operation": operation}).content == "Error: write A+B, A-B or A*B"


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["get", "set"]), st.sampled_from("abc"), st.text(max_size=3)), max_size=20))
def test_the_store_is_a_dictionary_that_begins_as_the_task_says(actions):
    store, model = toolsets.make("store"), {"a": "1"}
    LOOP.run_until_complete(store.open(Workplace(TASK, 0)))
    toolbox = Toolbox([store])
    for name, key, value in actions:
        if name == "set":
            assert call(toolbox, "set", {"key": key, "value": value}).content == "ok"
            model[key] = value
        else:
            assert call(toolbox, "get", {"key": key}).content == model.get(key, f"Error: there is no key {key!r}")
    assert TASK.metadata["store"] == {"a": "1"}


TEXTS = st.lists(
    st.lists(st.sampled_from(["red", "green", "blue", "cat", "dog", "the"]), max_size=9), min_size=1, max_size=9
)


@given(TEXTS, st.lists(st.sampled_from(["red", "cat", "the", "fish"]), min_size=1, max_size=3))
def test_scores_of_documents_are_those_of_the_formula(documents, query):
    mean = sum(map(len, documents)) / len(documents) or 1.0
    expected = {}
    for number, document in enumerate(documents):
        for word in query:
            containing = sum(word in other for other in documents)
            rarity = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            count = Counter(document)[word]
            if count:
                norm = count + 1.2 * (1 - 0.75 + 0.75 * len(document) / mean)
                expected[number] = expected.get(number, 0.0) + rarity * count * 2.2 / norm
    index = BM25Index([" ".join(document) for document in documents])
    scores = index.scores(" ".join(query))
    assert scores.keys() == expected.keys()
    assert all(math.isclose(scores[number], expected[number], rel_tol=1e-12) for number in expected)


@given(TEXTS, st.sampled_from(["red", "cat", "fish"]))
@settings(max_examples=40)
def test_documents_rank_as_in_sqlite(documents, word):
    """For one word, the two formulas differ by a constant factor."""
    database = sqlite3.connect(":memory:")
    database.execute("create virtual table texts using fts5(text)")
    database.executemany("insert into texts(text) values (?)", [(" ".join(document),) for document in documents])
    rows = database.execute("select rowid - 1, bm25(texts) from texts where texts match ?", (word,)).fetchall()
    ours = BM25Index([" ".join(document) for document in documents]).scores(word)
    assert sorted(ours) == sorted(number for number, _ in rows)
    theirs = {number: -score for number, score in rows}
    for one in ours:
        for other in ours:
            if theirs[one] > theirs[other] * (1 + 1e-9):
                assert ours[one] > ours[other]


@pytest.fixture
def corpus(tmp_path):
    pages = [
        {"address": "p/ada", "title": "Ada", "text": "Ada wrote the first program. " + "More words follow here. " * 40},
        {"address": "p/bob", "title": "Bob", "text": "Bob met Ada once."},
        {"address": "p/cy", "title": "Cy", "text": "Nothing of note."},
    ]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    return tmp_path / "pages.jsonl"


def test_search_shows_the_best_documents_and_browse_their_parts(corpus):
    toolbox = Toolbox([toolsets.make(f"search corpus='{corpus}' results=2 page=100")])
    found = call(toolbox, "search", {"query": "Ada's program"}).content.splitlines()
    assert [line.split(" | ")[0] for line in found] == ["p/ada", "p/bob"] and found[0].endswith(" ...")
    assert call(toolbox, "search", {"query": "zebra"}).content == "nothing was found"
    whole, number = "", 1
    while not (result := call(toolbox, "browse", {"address": "p/ada", "part": number})).is_error:
        whole += re.fullmatch(r"Ada\n(.*)\n\[part \d+ of 10\]", result.content, re.DOTALL)[1]
        number += 1
    assert whole == json.loads(corpus.read_text().splitlines()[0])["text"] and "1 to 10" in result.content
    assert "search shows addresses" in call(toolbox, "browse", {"address": "p/x"}).content


def test_a_corpus_that_cannot_be_read_is_refused_in_one_line(corpus):
    with pytest.raises(UserError, match="cannot be read"):
        toolsets.make("search corpus=/nowhere.jsonl")
    with pytest.raises(UserError, match="needs the option corpus"):
        toolsets.make("search")
    corpus.write_text('{"address": "a"}\n')
    with pytest.raises(UserError, match="line 1 of"):
        toolsets.make(f"search corpus={corpus}")
