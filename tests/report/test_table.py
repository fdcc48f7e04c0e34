"""Rounding and tables: what is printed keeps the digits that matter and lines up."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.report.table import duration, fenced, markdown_table, percent, quantity, significant, text_table


@given(st.floats(min_value=1e-4, max_value=1e12), st.integers(1, 6))
def test_significant_digits_keep_the_value_to_half_a_unit(value, digits):
    shown = significant(value, digits)
    assert "e" not in shown
    assert abs(float(shown.replace(",", "")) - value) <= 0.5000001 * value * 10 ** (1 - digits)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.012345, "0.0123"), (12345.6, "12,300"), (9.996, "10.0"), (-4.5678, "-4.57"), (3.1e-7, "3.10e-07")],
)
def test_significant(value, shown):
    assert significant(value) == shown


def test_not_a_number_is_named():
    assert (significant(float("nan")), significant(float("-inf"))) == ("nan", "-inf")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0 s"), (12.34, "12.3 s"), (59.99, "1 min 00 s"), (245, "4 min 05 s"), (3599.7, "1 h 00 min"),
     (11220, "3 h 07 min"), (187200, "2 d 04 h"), (float("inf"), "inf")],
)  # fmt: skip
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_counts_and_percentages():
    assert [quantity(n) for n in (999, 4096, 12300, 8612345, 1.04e12)] == ["999", "4,096", "12.3k", "8.61M", "1.04T"]
    assert percent(0.34567) == "34.6 %"


def test_a_markdown_table_lines_up_and_right_aligns_numbers():
    table = markdown_table(("name", "ratio"), [("a|b", 1.5), ("longer name", None), ("c", 12)])
    assert table == (
        "| name        | ratio |\n"
        "| ----------- | ----: |\n"
        "| a\\|b        | 1.500 |\n"
        "| longer name |       |\n"
        "| c           |    12 |\n"
    )


def test_a_text_table_lines_up():
    assert text_table(("name", "share"), [("router", "3 %"), ("x", "12.5 %")]) == (
        "name     share\n------  ------\nrouter     3 %\nx       12.5 %\n"
    )


def test_empty_tables_and_wrong_rows():
    assert markdown_table(("a",), []) == "| a   |\n| --- |\n"
    with pytest.raises(ValueError, match="2 cells"):
        markdown_table(("a",), [(1, 2)])


@given(st.text(alphabet="`a\n"))
def test_nothing_closes_the_fence_early(text):
    first, *body, last, end = fenced(text).split("\n")
    fence = first.removesuffix("text")
    assert (last, end) == (fence, "")
    assert "\n".join(body) == text
    assert fence not in text
