"""Bodies that continue others: read as if each were alone, whatever they hold, and kept within bounds."""

import copy
import gc
import itertools
import json
import random
import sys
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.api import ApiError
from k2jax.agents.api.encoding import parse_json
from k2jax.agents.api.once import Once
from k2jax.agents.gateway import bodies
from k2jax.agents.gateway.app import CHAT_DIALECTS, read_with_keys
from k2jax.agents.gateway.bodies import RepeatedBodies
from k2jax.files import bounded_json
from k2jax.files.bounded_json import parse_bounded_json
from tests.agents.gateway.scripted import CARD, DIALECTS, Bench, say, spec
from tests.agents.gateway.test_mutations import VALUES, damaged, recorded

[CHAT] = [dialect for dialect in CHAT_DIALECTS if dialect.path == "/v1/chat/completions"]
KEYS = st.sampled_from(["messages", "model", "tools", "a", "\u00e9", "messages"])
LEAVES = st.sampled_from([None, True, False, 1, 1.0, 0, -0.0, "1", "", "\\", '"]}', "\u00e9", "\U0001f600", 2**70])
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
MESSAGES = st.lists(st.dictionaries(st.sampled_from(["role", "content", "x"]), JSON, max_size=3), max_size=6)
ATTACKS = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-", b"01", b"1" * 5000, b'"\\ud800"', b'"\xff"', b'"\xed\xa0\x80"',
    b'"\n"', b"'a'", b"[" * 3000, b'{"a":' * 3000, b'{"a":1,"a":true}', b"{,}", b"{}{}", b"[1,]", b"tru", b"\x0c", b"",
    b'"\\u0000"', b"/**/1", b"\xef\xbb\xbf", b'],"messages":[', b'{}],"a":[{}', b"{}}", b"{}]", b",", b'"\\x"',
    b',"b":2', b" ", b"2", b"e5", b',"messages":3', b',"messages":[{}]',
]  # fmt: skip


def outcome(read):
    """What a reader returns, told apart by type and by order, or how it refuses."""
    try:
        return repr(read())
    except ApiError as error:
        return error.status, error.body


def both(kept, data):
    """What is read of a body with others kept, and alone."""

    def alone():  # as deep in the stack as within ``read``
        return parse_json(bytearray(data))

    mine = outcome(lambda: kept.read(bytearray(data), CHAT, lambda value, once: value))
    return mine, outcome(lambda: alone())


def written(messages, draw):
    """A body in one of many spellings."""
    fields = [("model", "k2"), ("messages", messages), ("tools", [{}]), ("messages", []), ("model", 1)]
    pairs = [fields[1], *draw.sample(fields, draw.randrange(len(fields)))]
    draw.shuffle(pairs)
    style = {"ensure_ascii": draw.random() < 0.5, "indent": draw.choice([None, None, 1])}
    return ("{" + ", ".join(f"{json.dumps(k)}: {json.dumps(v, **style)}" for k, v in pairs) + "}").encode()


@settings(max_examples=150, deadline=None)
@given(MESSAGES, JSON, st.integers(0, 2**20))
def test_any_sequence_of_bodies_is_parsed_as_each_alone(messages, value, seed):
    draw, kept = random.Random(seed), RepeatedBodies()
    for _ in range(6):
        change = draw.choice(["append", "append", "edit", "drop", "bytes"])
        messages = copy.deepcopy(messages)
        if change == "append" or not messages:
            messages.append({"role": "user", "content": value})
        elif change == "edit":
            draw.choice(messages)["content"] = draw.choice([value, VALUES[1], 1, 1.0, True, [value]])
        elif change == "drop":
            del messages[draw.randrange(len(messages))]
        data = bytearray(written(messages, random.Random(seed + (draw.random() < 0.2))))
        if change == "bytes":
            data[draw.randrange(len(data))] = draw.randrange(256)
        mine, alone = both(kept, data)
        assert mine == alone, data


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_refused_alone_is_refused_behind_a_history(attack):
    """In any place of a body whose beginning is known; what is not refused has the same value."""
    known = b'{"model": "k2", "messages": [{"role": "user"}, {"x": [1]}, 1], "n": 1}'
    first = RepeatedBodies()
    assert both(first, known)[0] == repr(json.loads(known))
    for at in range(len(known) + 1):
        for data in (known[:at] + attack + known[at:], known[:at] + attack + known[at + 1 :], known[:at] + attack):
            kept = RepeatedBodies()
            kept._kept = first._kept
            mine, alone = both(kept, data)
            assert mine == alone, data


@pytest.mark.parametrize("where", ["before", "new", "after"])
def test_depth_is_bounded_as_it_is_alone(where):
    """To the level, in front of the history, in a message behind known ones, and behind the history."""

    def depth(kept):
        first = kept._kept
        for levels in range(sys.getrecursionlimit(), 0, -1):
            deep = "[" * levels + "]" * levels
            fields = {"before": "", "new": "", "after": ""} | {where: deep}
            before = f'"a": {fields["before"] or 1}, '
            data = (
                f'{{{before}"messages": [{{}}, {{"b": {fields["new"] or 1}}}], "c": {fields["after"] or 1}}}'.encode()
            )
            mine, alone = both(kept, data)
            assert mine == alone, levels
            if not isinstance(mine, tuple):
                return levels
            kept._kept = first
        return 0

    kept = RepeatedBodies()
    assert both(kept, b'{"a": 1, "messages": [{}], "c": 1}')[0][0] == "{"
    assert depth(kept) > bodies._MOST_LEVELS


@pytest.mark.parametrize(
    ("name", "most", "text"), [("MOST_VALUES", 100, "a"), ("MOST_WIDE", 20, "\U0001f600" * 4), ("MOST_WIDE", 20, "a")]
)
def test_bounds_hold_for_what_is_known_and_new_together(name, most, text, monkeypatch):
    monkeypatch.setattr(bounded_json, name, most)
    monkeypatch.setattr(bounded_json, "_LONG", 700)
    if name == "MOST_VALUES":
        monkeypatch.setattr(bodies, name, most)
        monkeypatch.setattr(parse_bounded_json, "__defaults__", (most,))
    statuses, kept = [], RepeatedBodies()
    messages = [{"content": "\U0001f600" * 30}] if name == "MOST_WIDE" else []
    for count in range(1, 20):
        listed = messages + [{"content": text * 5, "x": [[]] * 5}] * count
        mine, alone = both(kept, json.dumps({"messages": listed}, ensure_ascii=False).encode())
        assert mine == alone
        statuses.append(mine[0])
    assert statuses[0] == "{" and statuses[-1] == 413


def test_unchanged_messages_are_the_same_objects_and_changed_ones_are_not():
    kept, seen = RepeatedBodies(), []
    messages = [{"role": "user", "content": text} for text in "ab\u00e9\U0001f600d"]
    for change in (lambda: None, lambda: messages.append({"e": 1}), lambda: messages[2].update(content=True)):
        change()
        data = bytearray(json.dumps({"messages": messages, "n": len(seen)}, ensure_ascii=False).encode())
        seen.append(kept.read(data, CHAT, lambda value, once: value["messages"]))
    same = [[one is other for one, other in zip(*pair, strict=False)] for pair in itertools.pairwise(seen)]
    assert same == [[True] * 5, [True, True, False, False, False, False]]


def test_the_same_bytes_say_something_else_in_another_dialect():
    data = b'{"messages": [{"role": "user", "content": "a"}], "input": "b"}'
    kept = RepeatedBodies()
    values = [kept.read(bytearray(data), dialect, lambda value, once: value) for dialect in CHAT_DIALECTS]
    assert values == [json.loads(data)] * 3


def test_a_question_is_asked_once_for_an_object_and_not_for_its_equals():
    asked = []
    first = Once()
    objects = [{"a": 1}, {"a": True}, {"a": 1.0}]
    answers = first.each("q", objects, lambda i: asked.append(i) or repr(objects[i]))
    later = Once(first.found)
    others = [*objects, {"a": 1}]
    assert later.each("q", others, lambda i: asked.append(i) or "new") == [*answers, "new"]
    assert asked == [0, 1, 2, 3] and len(set(answers)) == 3


@pytest.mark.parametrize("bodies_of_agents", [25, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", list(DIALECTS))
def test_an_edit_of_any_message_is_read_as_if_the_body_were_alone(path, bodies_of_agents):
    """Conversations and keys of real agents' bodies that are changed at random places, one after the other."""
    [dialect] = [dialect for dialect in CHAT_DIALECTS if dialect.path == f"/v1/{path}"]
    draw, originals, read = random.Random(path), recorded(path), read_with_keys(dialect, CARD)
    refused = shared = 0

    def found(read_body):  # without the options, whose seed is random
        conversation, keys = read_body()
        return conversation.messages, conversation.origins, conversation.tools, conversation.left_out, keys

    def step(kept, body):
        data = json.dumps(body).encode()
        repeated = kept._most_alike(bytearray(data), dialect)[1]
        mine = outcome(lambda: found(lambda: kept.read(bytearray(data), dialect, read)))
        assert mine == outcome(lambda: found(lambda: read(parse_json(data), Once()))), data
        return repeated > 0, isinstance(mine, tuple)

    for _ in range(bodies_of_agents):
        kept, body = RepeatedBodies(), draw.choice(originals)
        for _ in range(4):
            is_shared, is_refused = step(kept, body)
            shared, refused = shared + is_shared, refused + is_refused
            body = damaged(body, draw)
    assert refused and shared > bodies_of_agents / 4


def test_a_message_that_was_to_be_continued_cannot_be_followed_by_another():
    """What depends on a message's place is found out anew where the message is the same."""
    kept, read = RepeatedBodies(), read_with_keys(CHAT, CARD)
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "I", "partial": True}]
    statuses = []
    for more in ([], [{"role": "user", "content": "on"}]):
        data = bytearray(json.dumps({"model": "k2", "messages": messages + more}).encode())
        statuses.append(outcome(lambda data=data: kept.read(data, CHAT, read))[0])
    assert statuses == ["(", 400]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a line of code\n" * 2000}] * 40,
        [{"role": "user", "content": "\U0001f600" + "a" * 3000}] * 100,
        [{"a": [[]] * 20}] * 300,
        [{"a": {"b": {str(i): i}}} for i in range(600)],
    ],
)
def test_what_is_kept_takes_no_more_memory_than_is_counted(messages):
    data = json.dumps({"messages": messages}).encode()
    kept = RepeatedBodies()
    tracemalloc.start()
    try:
        kept.read(bytearray(data), CHAT, lambda value, once: None)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    [body] = kept._kept
    assert len(data) < taken <= body.size


def test_bodies_are_kept_within_bounds_and_until_the_rollout_ends(monkeypatch):
    kept = RepeatedBodies()

    def read(*contents):
        data = bytearray(json.dumps({"messages": [{"role": "user", "content": text} for text in contents]}).encode())
        kept.read(data, CHAT, lambda value, once: None)
        assert not data
        return len(kept._kept)

    assert [read(str(i)) for i in range(6)] == [1, 2, 3, 4, 4, 4]
    assert read("5", "6") == 4, "it continues one of them"
    assert read("5", *"0123456789") == 4 and read("5", "x") == 4
    assert [len(body.messages) for body in kept._kept] == [2, 11, 1, 1], "a fork does not end what it has left"
    latest = kept._kept[0]
    monkeypatch.setattr(bodies, "_MOST_MESSAGES", 3)
    assert read("y", *"0123456789") == 4 and kept._kept[0] is latest, "as many messages as these are not kept"
    monkeypatch.setattr(bodies, "MOST_KEPT", 20_000)
    assert read("a" * 6000) == 4 and kept._kept[0] is latest, "nor is a long one"
    assert [read(f"{i}" + "a" * 4000) for i in range(3)] == [1, 1, 1], "there is room for one"
    bench = Bench()
    access = bench.gateway.open(spec())
    bench.run(lambda http: say(http, access, "messages", [("user", "Go")]))
    session = bench.gateway.session(access.rollout)
    assert len(session.bodies._kept) == 1
    bench.run(lambda http: bench.gateway.close(access.rollout))
    assert not session.bodies._kept
