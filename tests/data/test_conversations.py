"""Conversations as training data: what is stored, how it is packed, and what has weight."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from renderers.kimi_k2 import KimiK2Renderer

from k2jax.config.schema import SourceConfig
from k2jax.data import prepare_data
from k2jax.data.build_shards import prepare_shards
from k2jax.data.conversation_rows import ConversationRows, best_fit, unmarked
from k2jax.data.tokenised import marked
from k2jax.text import byte_tokenizer
from tests.data.corpora import asked, data_config, write_records
from tests.refusal import refused
from tests.text import kimi
from tests.text import test_thinking_chat as thinking
from tests.text.test_chat import OracleTokenizer

BYTES = byte_tokenizer()
RUN = {"batch_size": 4, "seed": 1, "steps": 6}


def chat_file(path, records):
    return SourceConfig(kind="chat", path=write_records(path, records))


def plain(tmp_path, records, **fields):
    source = chat_file(tmp_path / "chat.jsonl", records)
    return data_config(tmp_path / "cache", {"s": source}, chat_format="plain", **({"sequence_length": 64} | fields))


def conversations(rows):
    """The documents of packed rows, each (token ids, weights), by what attends to what."""
    found = []
    for row in (rows[i] for i in range(len(rows))):
        start = 0
        while start < row.tokens.size and row.exit[start] > start + 1:
            end = int(row.exit[start])
            assert (row.exit[start:end] == end).all() and row.parent[start] == -1
            assert np.array_equal(row.parent[start + 1 : end], np.arange(start, end - 1))
            assert np.array_equal(row.positions[start:end], np.arange(end - start))
            found.append((row.tokens[start:end].tolist(), row.targets["weights"][start:end].tolist()))
            start = end
        assert not row.targets["weights"][start:].any() and not row.tokens[start:].any()
    return found


def conversations_of(shards, length):
    """The documents of both splits, as ``conversations`` gives them."""
    return [conversations(ConversationRows(split, length)) for split in (shards.train, shards.held_out)]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 64))
def test_every_item_is_packed_once_and_no_row_overflows_or_could_take_the_items_of_another(lengths, capacity):
    rows = best_fit(lengths, capacity)
    assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
    filled = [sum(lengths[item] for item in row) for row in rows]
    assert all(0 < size <= capacity for size in filled)
    # Two rows that would fit into one: best fit never opens the second of them.
    assert all(a + b > capacity for i, a in enumerate(filled) for b in filled[:i])
    assert rows == best_fit(np.array(lengths, np.int64), capacity)


@given(st.lists(st.tuples(st.integers(0, 2**30), st.booleans()), max_size=20))
def test_a_mark_beside_an_id_is_read_back(pairs):
    ids, trained = np.array([i for i, _ in pairs], np.int64), np.array([mark for _, mark in pairs], np.bool_)
    for found, given_ in zip(unmarked(marked(ids, trained)), (ids, trained), strict=True):
        assert np.array_equal(found, given_)


def test_every_conversation_is_whole_in_one_row_and_only_its_answer_has_weight(tmp_path):
    pairs = [(f"{i}+{i}=", str(2 * i) * (1 + i % 5)) for i in range(80)]
    config = plain(tmp_path, [asked(*pair) for pair in pairs])
    shards = prepare_shards("s", config, BYTES)
    found = conversations_of(shards, 64)
    expected = []
    for question, answer in pairs:
        ids = [BYTES.bos, *BYTES.encode(question + answer), BYTES.eos]
        expected.append((ids, [0.0] * (1 + len(question)) + [1.0] * (len(answer) + 1)))
    assert found[1] and sorted(found[0] + found[1]) == sorted(expected)
    for split, part in zip(("train", "held_out"), found, strict=True):
        counts = shards.manifest["splits"][split]
        assert counts["documents"] == len(part)
        assert counts["assistant_tokens"] == sum(sum(weights) for _, weights in part)


def test_tools_and_several_turns_have_the_weights_that_renderers_gives_them(tmp_path):
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
    turns = [("system", "Be terse."), ("user", "question {}"), ("assistant", "I look."), ("assistant", "answer {}")]
    turns += [("user", "thanks"), ("assistant", "welcome")]
    records = []
    for number in range(6):
        messages = [{"role": role, "content": text.format(number)} for role, text in turns]
        messages[2]["tool_calls"] = [call]
        records.append({"messages": messages, "tools": tools, "source": "ignored"})
    config = data_config(tmp_path / "cache", {"s": chat_file(tmp_path / "a.jsonl", records)}, sequence_length=512)
    shards = prepare_shards("s", config, kimi.tokenizer())
    train, held_out = conversations_of(shards, 512)
    renderer = KimiK2Renderer(OracleTokenizer())
    expected = []
    for record in records:
        oracle = renderer.render(record["messages"], tools=tools, add_generation_prompt=False)
        expected.append((list(oracle.token_ids), [float(sampled) for sampled in oracle.sampled_mask]))
    assert sorted(train + held_out) == sorted(expected)


def test_all_answers_to_a_prompt_are_in_one_split(tmp_path):
    records = [asked(f"{i % 10}?", f"answer {i}") for i in range(60)]
    shards = prepare_shards("s", plain(tmp_path, records), BYTES)
    prompts = [{tuple(ids[: weights.index(1.0)]) for ids, weights in split} for split in conversations_of(shards, 64)]
    assert prompts[0] and prompts[1] and not prompts[0] & prompts[1] and len(prompts[0] | prompts[1]) == 10


def test_a_prompt_and_its_completion_are_a_conversation(tmp_path):
    pairs = [{"prompt": f"q{number}", "completion": f"a{number}"} for number in range(10)]
    both = []
    for records in ([asked(*pair.values()) for pair in pairs], pairs):
        both.append(conversations_of(prepare_shards("s", plain(tmp_path, records), BYTES), 64))
    assert both[0] == both[1]


UNUSABLE = [
    (b'{"messages": []}', "not a list of messages"),
    (b'{"text": "x"}', "not a list of messages"),
    (b"[1]", "a JSON list, not an object"),
    (b'{"messages": [{"role": "user", "content": "x"}]}', "nothing that the assistant wrote"),
    (json.dumps(asked("x" * 70, "y")).encode(), "73 tokens, more than the 64 of config.data.sequence_length"),
    (b'{"messages": [{"role": "system", "content": "x"}]}', "the user asks and the assistant answers in turn"),
    (b'{"messages": [{"role": "user", "content": 3}]}', "content must be text"),
    (b'{"messages": [], "tools": 3}', "not a list"),
    (b'{"messages": ', "not JSON"),
    (b"\xff", "not UTF-8"),
]


@pytest.mark.parametrize(("line", "reason"), UNUSABLE)
def test_an_unusable_conversation_is_skipped_and_counted_or_refused(tmp_path, line, reason):
    config = plain(tmp_path, [asked(f"{i}", "x") for i in range(8)])
    path = tmp_path / "chat.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    manifest = prepare_shards("s", config, BYTES).manifest
    assert manifest["skipped"]["count"] == 1
    assert f"{path}, line 9" in manifest["skipped"]["first"][0] and reason in manifest["skipped"]["first"][0]
    assert sum(part["documents"] for part in manifest["splits"].values()) == 8
    with refused("corrupt record"):
        prepare_shards("s", dataclasses.replace(config, on_corrupt="fail"), BYTES)


def test_a_source_without_a_conversation_says_why(tmp_path):
    with refused(r"source 's' has no conversations in .*2 records were skipped, the first in"):
        prepare_shards("s", plain(tmp_path, [{"messages": []}, {"messages": 3}]), BYTES)
    with refused(r"5 conversations, all with the same prompt: .* at least two prompts"):
        prepare_shards("s", plain(tmp_path, [asked("same", str(i)) for i in range(5)]), BYTES)


def test_a_longer_row_and_another_format_are_other_data(tmp_path):
    records = [asked(f"{i}", "x" * 40) for i in range(8)] + [asked("long", "x" * 90)]
    config = plain(tmp_path, records)
    assert prepare_shards("s", config, BYTES).manifest["skipped"]["count"] == 1
    longer = dataclasses.replace(config, sequence_length=128)
    assert prepare_shards("s", longer, BYTES).manifest["skipped"]["count"] == 0
    with refused("no chat format"):
        prepare_shards("s", dataclasses.replace(config, chat_format="auto"), BYTES)


def test_held_out_prompts_are_those_that_an_answer_follows(tmp_path):
    data = prepare_data(plain(tmp_path, [asked(f"{i}?", f"yes {i}") for i in range(60)]), **RUN)
    prompts = data.held_out.beginnings(3, 1)
    assert len(prompts) == 3
    for prompt in prompts:
        assert prompt[0] == BYTES.bos and BYTES.decode(prompt).endswith("?")
    weights = [batch.targets["weights"].sum() for batch in data.held_out.batches(4)]
    assert sum(weights) == data.manifests["s"]["splits"]["held_out"]["assistant_tokens"]


def test_every_answer_is_trained_once_as_a_thinking_model_wrote_it_after_the_history_that_it_read(tmp_path):
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def says(content, reasoning, **more):
        return {"role": "assistant", "content": content, "reasoning_content": reasoning} | more

    messages = [
        says("", "look", tool_calls=[call]),
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "found"},
        says("first", "tell"),
        {"role": "user", "content": "two"},
        says("second", ""),
        {"role": "user", "content": "three"},
        says("third", "last"),
    ]
    records = [{"messages": [{"role": "user", "content": f"one {i}"}, *messages]} for i in range(30)]
    config = data_config(tmp_path / "cache", {"s": chat_file(tmp_path / "a.jsonl", records)}, sequence_length=256)
    shards = prepare_shards("s", config, thinking.tokenizer())
    seen = {}
    for split in conversations_of(shards, 256):
        of_split = set()
        for ids, weights in split:
            text = kimi.text_of(ids, thinking.tokenizer())
            written = kimi.text_of([i for i, w in zip(ids, weights, strict=True) if w], thinking.tokenizer())
            question = text.split("<|im_end|>")[0].split("<|im_middle|>")[1]
            assert question in of_split or question not in seen  # all branches of a conversation are in one split
            of_split.add(question)
            seen.setdefault(question, []).append((text, written))
    section = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    section += "<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    assert len(seen) == 30
    for branches in seen.values():
        texts, answers = zip(*sorted(branches, key=lambda pair: len(pair[0])), strict=True)
        assert answers == (f"look</think>{section}tell</think>first<|im_end|>", "second<|im_end|>",
                           "last</think>third<|im_end|>")  # fmt: skip
        assert "<think>look" in texts[0] and not any("look" in text or "tell" in text for text in texts[1:])
        assert texts[2].count("<think></think>") == 3
