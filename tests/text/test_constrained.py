"""Grammars of schemas and calls: every text that they let pass is right, and hostile ones are refused quickly."""

import json
from pathlib import Path
import time

import hypothesis
from hypothesis import strategies as st
import jsonschema
import numpy as np
import pytest

from k2jax.client import TokenConstraint
from k2jax.errors import UserError
from k2jax.inference.constraints import ConstraintState
from k2jax.text.constrained import Grammars, choice_rule, regex_rule, schema_rule
from tests.text import kimi

TOKENIZER = kimi.tokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size + 40)
LEAVES = st.sampled_from([
    {"type": "string"}, {"type": "string", "maxLength": 4}, {"type": "integer"}, {"type": "boolean"}, {"type": "null"},
    {"type": "number"}, {"type": "integer", "minimum": -3, "maximum": 12}, {"enum": ["a b", "é", 3, None]},
    {"const": {"x": [1]}}, {"type": "string", "pattern": "^[a-f]{2,5}$"}, {"type": ["integer", "null"]},
    {"type": "string", "format": "date"}, {"type": "integer", "multipleOf": 5},
])  # fmt: skip


def objects(children):
    names = st.lists(st.sampled_from(["a", "b c", 'q"', "ü"]), min_size=1, max_size=3, unique=True)
    return names.flatmap(
        lambda names: st.builds(
            lambda parts, needed, closed: {
                "type": "object",
                "properties": dict(zip(names, parts, strict=True)),
                "required": names[:needed],
                **({"additionalProperties": False} if closed else {}),
            },
            st.lists(children, min_size=len(names), max_size=len(names)),
            st.integers(0, len(names)),
            st.booleans(),
        )
    )


def lists(children):
    return st.builds(lambda items, few: {"type": "array", "items": items, "maxItems": few}, children, st.integers(0, 3))


def unions(children):
    return st.builds(lambda a, b: {"anyOf": [a, b]}, children, children)


SCHEMAS = st.recursive(LEAVES, lambda children: objects(children) | lists(children) | unions(children), max_leaves=6)


def structural(tokenizer):
    """Ids of quotes, brackets and the like, which random draws take half of the time, so that texts end."""
    return [i for letter in '"}],:0a' for i in tokenizer.encode(letter)]


def walk(state, rng, tokenizer, stops, likely=(), most=250):
    """Ids that a model of random weights draws under the masks of a state; None where they reach no end."""
    words, ids = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32), []
    is_likely = np.zeros(tokenizer.vocab_size, bool)
    is_likely[[*structural(tokenizer), *stops, *likely]] = True
    while len(ids) < most:
        words[:] = ~np.uint32(0)
        state.fill(words)
        assert not state.failure
        is_allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: tokenizer.vocab_size].astype(bool)
        preferred = np.flatnonzero(is_allowed & is_likely)
        choices = preferred if len(preferred) and rng.random() < 0.5 else np.flatnonzero(is_allowed)
        token = int(choices[rng.integers(len(choices))])
        if token in stops:
            return ids
        state.take(token)
        ids.append(token)
    return None


def drawn_text(grammar, seed):
    state = ConstraintState(TokenConstraint(grammar), GRAMMARS.matcher(grammar), (TOKENIZER.eos,))
    ids = walk(state, np.random.default_rng(seed), TOKENIZER, (TOKENIZER.eos,))
    return None if ids is None else b"".join(map(TOKENIZER.token_bytes, ids)).decode()


@pytest.mark.parametrize("count", [40, pytest.param(1500, marks=pytest.mark.slow)])
def test_what_is_drawn_is_json_of_the_schema(count):
    ended = 0

    @hypothesis.settings(max_examples=count)
    @hypothesis.given(SCHEMAS, st.integers(0, 2**32 - 1))
    def check(schema, seed):
        nonlocal ended
        text = drawn_text("start: value\n" + schema_rule("value", schema, "schema"), seed)
        if text is not None:
            ended += 1
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)

    check()
    assert ended > count // 2


@hypothesis.settings(max_examples=30)
@hypothesis.given(st.text(min_size=1, max_size=6), st.integers(0, 99))
def test_a_choice_is_one_of_its_texts_whatever_it_is_made_of(text, seed):
    grammar = "start: value\n" + choice_rule("value", [text, "other"], "choice")
    assert drawn_text(grammar, seed) in (text, "other")


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [("a/b\n[/]?", {"a/b\n", "a/b\n/"}), ("(yes|no)", {"yes", "no"}), (r'\/"\\', {'/"\\'}), ("x{2}", {"xx"})],
)
def test_a_regular_expression_matches_as_a_whole(pattern, texts):
    grammar = "start: value\n" + regex_rule("value", pattern, "regex")
    assert {drawn_text(grammar, seed) for seed in range(12)} == texts


def nested(depth):
    return {"type": "null"} if not depth else {"type": "array", "items": nested(depth - 1)}


def chain(length):
    links = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i - 1}"}} for i in range(1, length)}
    return {"$ref": f"#/$defs/d{length - 1}", "$defs": {"d0": {"type": "null"}, **links}}


HOSTILE = {
    "deep": nested(900), "wide": {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
    "enum": {"enum": [f"value {i * 7919}" for i in range(100_000)]}, "chain": chain(3000), "self": {"$ref": "#"},
    "product": {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}, "type": "object"} for j in (1, 2)]}
                          for i in range(24)]},
    "multiple": {"type": "integer", "multipleOf": 1_000_003, "maximum": 10**15},
    "multiples": {"allOf": [{"type": "integer", "multipleOf": 997 - i} for i in range(5)]},
    "patterns": {"allOf": [{"type": "string", "pattern": f".*{c}.{{12}}"} for c in "abcdefgh"]},
    "remote": {"$ref": "http://localhost/x"}, "unknown": {"not": {"type": "null"}}, "number": {"minimum": 10**400},
    "false": False, "text": "schema", "long": {"const": "x" * 300_000},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_in_one_line_and_a_moment(name):
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark becomes what there is now
    began, before = time.process_time(), _peak()
    with pytest.raises(UserError) as refused:
        GRAMMARS.matcher("start: value\n" + schema_rule("value", HOSTILE[name], "schema"))
    assert time.process_time() - began < 2.0 and _peak() - before < 256 << 10
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def _peak():
    """Most memory of this process since the mark was reset [kB]."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def test_deep_schemas_within_the_bounds_are_compiled():
    """A chain of references, which a thread of the usual stack would not survive."""
    for schema in (nested(25), chain(2400)):
        words = np.zeros(GRAMMARS.words, np.uint32)
        GRAMMARS.matcher("start: value\n" + schema_rule("value", schema, "schema")).fill(words)
        [bracket] = TOKENIZER.encode("[")
        assert words[bracket // 32] >> bracket % 32 & 1


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(.*a.{20}){5}", "((((a{0,100}){0,100}){0,100}){0,100}){0,100}", "(" * 3000 + "a" + ")" * 3000, "(?=a)b",
     r"(a)\1", "((", ".*".join("abcdefgh" * 10), r"\w{1,1000}\p{L}{1,1000}[^a]{1000}", "a|" * 200_000],
)  # fmt: skip
def test_no_regular_expression_takes_long(pattern):
    began = time.process_time()
    try:
        matcher = GRAMMARS.matcher("start: value\n" + regex_rule("value", pattern, "regex"))
        words = np.zeros(GRAMMARS.words, np.uint32)
        for _ in range(20):
            matcher.fill(words)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            if matcher.failure or not len(allowed):
                break
            matcher.take(int(allowed[-1]))
        assert "\n" not in matcher.failure
    except UserError as refused:
        assert "\n" not in str(refused)
    assert time.process_time() - began < 2.0


def test_a_long_grammar_is_refused():
    with pytest.raises(UserError, match="characters; at most"):
        GRAMMARS.matcher(f'start: "{"a" * 1_100_000}"\n')


def test_ids_beyond_the_vocabulary_are_never_allowed():
    words = np.zeros(GRAMMARS.words, np.uint32)
    assert GRAMMARS.matcher("start: <[*]>*\n").fill(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert bits[: TOKENIZER.vocab_size].sum() == TOKENIZER.vocab_size - 1  # the end is no part of a text
    assert not bits[TOKENIZER.vocab_size :].any()


def test_the_library_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[constrained\]"'):
        Grammars(TOKENIZER, 800).matcher('start: "a"\n')
