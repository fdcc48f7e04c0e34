"""Records of many fields are built by name: who reads a call sees what each value is, and fields may come and go."""

import ast

import pytest

from tests.test_style import TREES

MANY = 6
"""Fields up to which a record may be built by position."""
LEADING = 4
"""Values of a larger record that may stand without a name, as those that say which one it is."""


def fields_of(node):
    """The annotations of a class's fields, with the mark behind which fields are given by name alone."""
    lines = [ast.unparse(line.annotation) for line in node.body if isinstance(line, ast.AnnAssign)]
    return [line for line in lines if "ClassVar" not in line]


def kind_of(node):
    """``tuple`` and ``dataclass`` for records, None for other classes."""
    if any(ast.unparse(base) == "NamedTuple" for base in node.bases):
        return "tuple"
    return "dataclass" if any("dataclass" in ast.unparse(each) for each in node.decorator_list) else None


def by_position(node):
    """Number of values that a record takes without a name."""
    kinds = [ast.unparse(each) for each in node.decorator_list]
    if any("kw_only=True" in kind for kind in kinds):
        return 0
    marks = ["KW_ONLY" in field for field in fields_of(node)]
    return marks.index(True) if True in marks else len(marks)


def is_of_arrays(node):
    """Whether the record holds arrays: jax makes such a tuple anew by position, and nobody else may."""
    return any("Array" in field for field in fields_of(node))


def large_records(trees):
    """Names of records with many fields, and what is wrong with their declarations."""
    records, wrong = set(), []
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and kind_of(node) and len(fields_of(node)) > MANY:
                if kind_of(node) == "tuple":
                    records.add(node.name)
                    wrong += [node.name] * (not is_of_arrays(node))
                elif by_position(node) > LEADING:
                    wrong.append(node.name)
    return records, wrong


def nameless_calls(tree, records):
    """Lines of calls that give a record more values without a name than it may have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > LEADING:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in records:
                yield f"{name}, line {node.lineno}"


def test_records_of_many_fields_cannot_be_built_by_position():
    records, wrong = large_records(TREES.values())
    assert len(records) >= 5 and not wrong, wrong
    assert not [(file, call) for file, tree in TREES.items() for call in nameless_calls(tree, records)]


FIELDS = "".join(f"    field{number}: Array\n" for number in range(7))
STRINGS = FIELDS.replace("Array", "str")


@pytest.mark.parametrize(
    ("source", "is_wrong"),
    [
        (f"@dataclass(frozen=True)\nclass A:\n{FIELDS}", True),
        (f"@dataclass(frozen=True, kw_only=True)\nclass A:\n{FIELDS}", False),
        (f"@dataclass\nclass A:\n    name: str\n    _: dataclasses.KW_ONLY\n{FIELDS}", False),
        (f"@dataclass\nclass A:\n{FIELDS}    _: dataclasses.KW_ONLY\n    more: str\n", True),
        (f"class A(NamedTuple):\n{STRINGS}", True),
        (f"class A(NamedTuple):\n{FIELDS}", False),
        ("class A(NamedTuple):\n    one: str\n    two: str\n", False),
    ],
)
def test_a_large_record_is_found(source, is_wrong):
    assert bool(large_records([ast.parse(source)])[1]) == is_wrong


def test_a_call_without_names_is_found():
    tree = ast.parse("A(1, 2, 3, 4, 5)\nA(1, 2, 3, 4, e=5)\nA(*values)\nB(1, 2, 3, 4, 5)")
    assert list(nameless_calls(tree, {"A"})) == ["A, line 1"]
