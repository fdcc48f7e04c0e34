"""Schemas of tools that a hostile client writes: their declaration takes time and memory in proportion to them."""

import time

import pytest

from k2jax.text.tool_types import declare_functions
from tests.refusal import refused
from tests.text import qwen

MANY = 40_000


def declared(parameters):
    return declare_functions([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def nested(description, levels):
    schema = {"type": "string", "description": description}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "parameters",
    [
        {"$defs": {f"d{i}": {"type": "string"} for i in range(MANY)}},
        {"properties": {f"p{i}": {} for i in range(MANY)}, "required": [f"q{i}" for i in range(MANY)]},
    ],
    ids=["definitions", "required"],
)
def test_many_parts_of_a_schema_take_no_time_of_their_square(parameters):
    begun = time.process_time()
    declared(parameters)
    assert time.process_time() - begun < 3


def test_lines_of_deep_schemas_are_not_mostly_indentation():
    assert declared(nested("a\n" * 20, 100)).count("// a") == 20
    with refused("nested too deeply"):
        declared(nested("a\n" * 100_000, 100))


def test_all_declarations_together_have_a_limit():
    function = {"type": "function", "function": {"name": "f", "description": "a" * (1 << 20)}}
    with refused("characters"):
        declare_functions([function] * 20)


def test_deep_tools_of_many_lines_are_not_mostly_indentation_in_llamas_format():
    schema = [1] * 20_000
    for _ in range(300):
        schema = [schema]
    begun = time.process_time()
    with refused("declarations of the tools have more than"):
        qwen.LLAMA_3.tools_text([{"function": schema}])
    for chat in (qwen.LLAMA_3, qwen.QWEN):
        with refused("must be JSON values"):
            chat.declare_tools([{"function": {1, 2}}])
    assert time.process_time() - begun < 3


def test_definitions_of_definitions_are_declared_once_each_and_in_order():
    inner = {"type": "object", "$defs": {"b": {"type": "string"}}, "properties": {"b": {"$ref": "#/$defs/b"}}}
    lines = declared({"$defs": {"a": inner}, "properties": {"a": {"$ref": "#/$defs/a"}}}).split("\n")
    assert [line for line in lines if line.startswith("interface")] == ["interface a {", "interface b string"]
