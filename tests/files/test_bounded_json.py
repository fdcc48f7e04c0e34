"""JSON of a bounded number of values: counted before it is parsed, never fewer than there are."""

import json

from hypothesis import given, settings, strategies
import pytest

from k2jax.files import bounded_json
from k2jax.files.bounded_json import TooManyValuesError, count_values, parse_bounded_json

LEAVES = strategies.none() | strategies.booleans() | strategies.integers() | strategies.text()
VALUES = strategies.recursive(
    LEAVES,
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=30,
)


def values_of(value) -> int:
    """The oracle: values and keys of what the parser made."""
    if isinstance(value, dict):
        return 1 + sum(1 + values_of(inner) for inner in value.values())
    return 1 + (sum(map(values_of, value)) if isinstance(value, list) else 0)


@settings(max_examples=120, deadline=None)
@given(VALUES, strategies.booleans())
def test_no_document_has_more_values_than_are_counted(value, ascii_only):
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    true = values_of(json.loads(data.decode("utf-8", "surrogatepass")))
    for most in (1, true - 1, true, 10 * true):
        assert count_values(data, most) >= min(true, most + 1)
    assert count_values(data, 1 << 40) >= true


def test_marks_inside_strings_do_not_count_where_they_are_many():
    text = 'x, y: [{"' * 100_000
    assert parse_bounded_json(json.dumps({"a": [text, text + "\\"]}), 100) == {"a": [text, text + "\\"]}


@pytest.mark.parametrize("unit", ["[]", '""', '{"":1}', "1", '"\\\\"', '"\\""', '"\U0001f600"'])
def test_a_document_of_many_values_is_refused(unit):
    with pytest.raises(TooManyValuesError):
        parse_bounded_json(f"[{','.join([unit] * 2000)}]", 1500)
    assert len(parse_bounded_json(f"[{','.join([unit] * 200)}]", 1500)) == 200


def test_another_encoding_does_not_hide_values_behind_bytes_that_look_like_quotes():
    document = '["∀", ' + ",".join(["[]"] * 2000) + "]"  # ∀ has the byte of a quote in UTF-16
    with pytest.raises(ValueError):
        parse_bounded_json(document.encode("utf-16-le"), 1500)
    assert parse_bounded_json(b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "NaN", "[Infinity]", "", '"', "1" * 10_000])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_bounded_json(text)


@pytest.mark.parametrize("wide", ["\U0001f600", "\\ud83d\\ude00"])
@pytest.mark.parametrize("strings", [1, 20])
def test_long_texts_with_wide_characters_are_refused_and_long_texts_beside_them_are_not(wide, strings):
    text = "a" * ((12 << 20) // strings)
    document = ('["' + '","'.join([f'{text}\\"{wide}'] * strings) + '"]').encode()
    with pytest.raises(TooManyValuesError, match="beyond"):
        parse_bounded_json(document)
    assert parse_bounded_json(f'["{text}\\\\","{wide}"]'.encode()) == [text + "\\", "\U0001f600"]


TEXTS = strategies.lists(strategies.text('a"\\\U0001f600\u00e9', max_size=30), max_size=8)


@settings(max_examples=120, deadline=None)
@given(TEXTS, strategies.integers(2, 40))
def test_the_size_of_texts_with_wide_characters_is_counted_exactly(texts, piece):
    data = json.dumps(texts).encode()
    wide = sum(len(json.dumps(text)) for text in texts if "\U0001f600" in text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "_LONG", 0)
        patch.setattr(bounded_json, "_PIECE", piece)
        patch.setattr(bounded_json, "MOST_WIDE_TEXT", wide)
        assert parse_bounded_json(data) == texts
        patch.setattr(bounded_json, "MOST_WIDE_TEXT", wide - 1)
        if wide:
            with pytest.raises(TooManyValuesError):
                parse_bounded_json(data)
