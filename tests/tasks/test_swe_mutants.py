"""Changes of tests after which they fail: whatever form a test has, and however often changes are drawn."""

import ast
import random
import re
import textwrap
import unittest

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.tasks.swe import literals, mutants

PASSING = {
    "a number": "assert 1 + 2 == 3",
    "zero": "assert [].count(1) == 0",
    "a negative number": "assert -1 - 2 == -3",
    "a fraction": "assert 1 / 4 == 0.25",
    "an exponent": "assert 1e3 * 2 == 2e3",
    "digits in hexadecimal": "assert 15 == 0xF",
    "a text": "assert 'a' + 'bc' == 'abc'",
    "an empty text": "assert ''.join([]) == ''",
    "a text of signs": "assert '-' + '+' == '-+'",
    "escapes": r"assert 'a\n' + 'b' == 'a\nb'",
    "several literals": "assert 'ab' == 'a' 'b'",
    "bytes": "assert bytes([97, 98]) == b'ab'",
    "a list": "assert sorted([3, 1]) == [1, 3]",
    "an empty list": "assert list(()) == []",
    "a dictionary": "assert dict(a=1) == {'a': 1}",
    "nothing": "assert {}.get(1) == None",
    "true": "assert (1 < 2) == True",
    "a name": "expected = [1, 2]\nassert list(range(1, 3)) == expected",
    "a call": "assert int('7') == int('7')",
    "the other side": "x = 5\nassert 5 == x",
    "approximately": "assert 0.1 + 0.2 == pytest.approx(0.3, abs=1e-9)",
    "a member": "assert 'bc' in 'abcd'",
    "a number of members": "assert 2 in (1, 2)",
    "equality as a call": "import math\nassert math.isclose(0.1 + 0.2, 0.3)",
    "no member": "assert 'x' not in 'abcd'",
    "identity": "x = None\nassert x is None",
    "no identity": "x = 1\nassert x is not None",
    "an order": "assert 1 < 2",
    "a chain": "assert 1 < 2 < 3",
    "truth": "x = [1]\nassert x",
    "no truth": "x = []\nassert not x",
    "both": "x = 1\nassert x and x == 1",
    "one of two": "x = 1\nassert x == 2 or x == 1",
    "a call that compares": "assert 'abc'.startswith('ab')",
    "an instance": "assert isinstance(1, int)",
    "an error": "with pytest.raises(ZeroDivisionError):\n    1 / 0",
    "the text of an error": "with pytest.raises(ValueError, match='bad word'):\n    raise ValueError('a bad word')",
    "an error of a call": "pytest.raises(ValueError, int, 'x')",
    "a warning": "import warnings\nwith pytest.warns(UserWarning):\n    warnings.warn('x')",
    "a loop": "for x in (1, 2):\n    assert x + 1 == 1 + x",
    "two names": "a, b = 1, 2\nc, d = 1, 2\nassert a == c\nassert b == d",
    "a method": "T.assertEqual(1 + 1, 2)",
    "a method of truth": "T.assertTrue('a' in 'ab')",
    "a method of an object": "x = []\nT.assertFalse(x)",
    "a method of errors": "with T.assertRaises(KeyError):\n    {}['a']",
    "a method of members": "x = [1]\nT.assertIn(x[0], x)",
    "a method of nothing": "x = None\nT.assertIsNone(x)",
    "own words": "def check_sum(a, b):\n    assert sum(a) == b\ncheck_sum([1, 2], 3)",
}


class T(unittest.TestCase):
    """Assertions of unittest."""


def run(text):
    exec(compile(text, "test", "exec"), {"pytest": pytest, "T": T()})


@pytest.mark.parametrize("name", PASSING)
def test_every_change_makes_a_test_fail(name):
    text = f"def test_a():\n{textwrap.indent(PASSING[name], '    ')}\n"
    run(f"{text}\ntest_a()")
    drawn = set()
    for _ in range(25):
        [edit] = mutants.edits_of(literals.TestModule(text.encode()), ["test_a"])
        assert edit["tests"] == ["test_a"] and edit["always"] and not edit["row"]
        for change in edit["changes"]:
            drawn.add(changed(text, change))
    for other in drawn:
        with pytest.raises((Exception, pytest.fail.Exception)):
            run(f"{other}\ntest_a()")


def changed(text, change):
    data = text.encode()
    for begin, end, new in sorted(change, reverse=True):
        data = data[:begin] + new.encode() + data[end:]
    return data.decode()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_another_literal_is_another_value(value, rng):
    literals.draw = rng
    try:
        source = literals.TestModule(f"x = {value!r}\ny = ['some', 'words']\n".encode("utf-8", "surrogatepass"))
    except ValueError:
        return  # half a surrogate is no text of a module
    finally:
        literals.draw = random.SystemRandom()
    node = source.tree.body[0].value
    for change in [source.other_value(node)]:
        other = ast.literal_eval(ast.parse(changed(source.data.decode(), change)).body[0].value)
        assert not change or other != value or re.search("True|False", repr(value))


def test_rows_of_parameters_change_one_by_one():
    text = (
        "import pytest\nclass TestA:\n    @pytest.mark.parametrize('z', [1, pytest.param(2, id='two')])\n"
        "    def test_a(self, z):\n        assert abs(-2) == z\n"
        "    @pytest.mark.parametrize('u,v', [(1, 2), pytest.param(3, 4, id='x')])\n"
        "    def test_b(self, u, v):\n        assert u + 1 == v\n"
    )
    edits = mutants.edits_of(literals.TestModule(text.encode()), ["TestA::test_b", "TestA::test_a"])
    assert all(edit["row"] and len(edit["changes"]) == 1 for edit in edits)
    assert [text[slice(*edit["changes"][0][0][:2])] for edit in edits] == ["2", "4", "1", "2"]


def test_a_test_without_checks_of_its_own_is_changed_where_its_helper_checks():
    text = (
        "def check(x):\n    assert x == 3\n\ndef test_a():\n    check(3)\n\n"
        "def test_b():\n    check(1 + 2)\n\ndef test_c():\n    pass\n"
    )
    edits = mutants.edits_of(literals.TestModule(text.encode()), ["test_a", "test_b", "test_c", "test_gone"])
    assert {test for edit in edits for test in edit["tests"]} >= {"test_b"}
    assert not any("test_c" in edit["tests"] for edit in edits)


@pytest.mark.parametrize(
    "body", ["if f():\n    assert 1 == 1", "with pytest.raises(E):\n    assert 1 == 1", "return\nassert 1"]
)
def test_what_a_passing_test_may_never_come_by_is_said_to_be_so(body):
    text = f"def test_a():\n{textwrap.indent(body, '    ')}\n"
    edits = mutants.edits_of(literals.TestModule(text.encode()), ["test_a"])
    assert [edit["always"] for edit in edits] == ["raises" in body]
