"""Runs inside sandboxes, as text, with the standard library: changes of tests after which they must fail.

A change looks like a test that somebody might have written: another number next to the right one, another word in a
text, another exception, the opposite of a comparison. Which of a test's places is changed, and how, is drawn at random.

The first line of stdin is a JSON header with ``file`` and ``tests`` (names in it, such as ``Class::test``), the rest a
tar archive. The output is a list of edits as JSON: ``changes`` to choose from (first byte, end and new text of each
part), ``tests`` that they are of, ``always`` where a test that passes always comes by there, and ``row`` where the edit
is of one of several rows of a test's parameters.
"""

import ast
import io
import json
import re
import sys
import tarfile

from k2jax.tasks.swe.literals import TOLERANCES, TestModule, draw, is_literal, name_of, values_of_parameter

OPPOSITES = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.Lt: ("<", ">="), ast.GtE: (">=", "<"),
    ast.Gt: (">", "<="), ast.LtE: ("<=", ">"),
}  # fmt: skip
OPPOSITE_METHODS = {
    **{f"assert{name}": f"assertNot{name}" for name in ("Equal", "In", "IsInstance", "Regex", "AlmostEqual")},
    "assertIs": "assertIsNot", "assertIsNone": "assertIsNotNone", "assertTrue": "assertFalse",
    "assertGreater": "assertLessEqual", "assertLess": "assertGreaterEqual",
}  # fmt: skip
OPPOSITE_METHODS.update({new: old for old, new in OPPOSITE_METHODS.items()})
CHECKING = re.compile(r"assert|check|verify|expect|ensure|match|compare|should|fnmatch|raises|warns", re.IGNORECASE)
COMPARING = re.compile(r"close|equal|eq$|same", re.IGNORECASE)
MAX_CHANGES = 6  # of a test
ERRORS = ("ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError", "AttributeError", "OSError", "NameError")
WARNINGS = ("UserWarning", "DeprecationWarning", "FutureWarning", "ResourceWarning", "SyntaxWarning", "BytesWarning")


def always(body: list) -> list:
    """Statements that a call comes by unless one of them fails."""
    statements = []
    for statement in body:
        if isinstance(statement, (ast.Return, ast.Raise)):
            break
        statements.append(statement)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            names = [name_of(item.context_expr) for item in statement.items]
            if not any(re.search("raises|suppress|skip", name, re.IGNORECASE) for name in names):
                statements += always(statement.body)
        elif isinstance(statement, ast.For) and getattr(statement.iter, "elts", ()):
            statements += always(statement.body)
        elif isinstance(statement, ast.Try) and not statement.handlers:
            statements += always(statement.body) + always(statement.finalbody)
    return statements


class TestFunction:
    """A function of tests, and the changes of it after which it fails."""

    def __init__(self, source: TestModule, function: ast.AST):
        self.source, self.function = source, function
        self.loads = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]

    def changes(self, statements: list) -> list:
        """Changes of one of some statements each, as lists of replacements, in random order."""
        every = [change for change in map(self.of_statement, statements) if change]
        return draw.sample(every, min(len(every), MAX_CHANGES))

    def of_statement(self, statement: ast.AST) -> list:
        """A change of a statement that checks something."""
        if isinstance(statement, ast.Assert):
            return self.of_condition(statement.test)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return self.of_call(statement.value)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            calls = [item.context_expr for item in statement.items if isinstance(item.context_expr, ast.Call)]
            changes = [change for change in map(self.of_call, calls) if change]
            return changes[0] if changes else []
        return []

    def of_condition(self, test: ast.AST) -> list:
        """A change of an expression that must be true."""
        begin, end = self.source.span(test)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return self.of_condition(draw.choice(test.values))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            operand = self.source.text(test.operand)
            return [(begin, end, f"({operand})" if "\n" in operand else operand)]
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            change = self.of_comparison(test.ops[0], test.left, test.comparators[0])
            change = change or self.source.between(test.left, test.comparators[0], *OPPOSITES[type(test.ops[0])])
            if change:
                return change
        if isinstance(test, ast.Call) and COMPARING.search(name_of(test)) and len(test.args) > 1:
            change = self.of_comparison(ast.Eq(), *test.args[:2])
            if change:
                return change
        if isinstance(test, (ast.Call, ast.Name, ast.Attribute, ast.Subscript)):
            return [(begin, begin, "not ")]
        return [(begin, begin, "not ("), (end, end, ")")]

    def of_comparison(self, operator: ast.AST, left: ast.AST, right: ast.AST) -> list:
        """The change of what an expression is compared with; none where that is no value that this test holds."""
        if not isinstance(operator, ast.Eq):
            return []
        sides = [self.value_of(side) for side in (right, left)]
        if is_literal(sides[1]) and not is_literal(sides[0]):
            sides.reverse()
        return self.source.other_value(sides[0]) or self.swapped(right)

    def value_of(self, node: ast.AST) -> ast.AST:
        """An expression, or what a name stands for that is used once."""
        if isinstance(node, ast.Name) and self.loads.count(node.id) == 1:
            assigned = [
                statement.value
                for statement in always(self.function.body)
                if isinstance(statement, ast.Assign) and [name_of(target) for target in statement.targets] == [node.id]
            ]
            return assigned[0] if len(assigned) == 1 else node
        return node

    def swapped(self, right: ast.AST) -> list:
        """The change of what is compared with into what another comparison of the test is made with."""
        others = [
            self.source.text(node.comparators[0])
            for node in ast.walk(self.function)
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)
        ]
        others = [other for other in others if other != self.source.text(right)]
        return [(*self.source.span(right), draw.choice(others))] if others else []

    def of_call(self, call: ast.Call) -> list:
        """A change of a call that checks something."""
        name, arguments = name_of(call), [*call.args, *(k.value for k in call.keywords if k.arg not in TOLERANCES)]
        if re.search("raises|warns", name, re.IGNORECASE):
            return self.of_expected_error(call)
        if not CHECKING.search(name) or not arguments:
            return []
        change = []
        if name in ("assertTrue", "assertFalse") and isinstance(arguments[0], ast.Compare):
            change = self.of_condition(arguments[0])
        elif re.search("equal|close", name, re.IGNORECASE) and len(call.args) > 1:
            change = self.of_comparison(ast.Eq(), *call.args[:2])
        elif name not in OPPOSITE_METHODS:
            literals = [argument for argument in arguments if is_literal(argument)]
            change = self.source.other_value(draw.choice(literals)) if literals else []
        if not change and name in OPPOSITE_METHODS:
            end = self.source.span(call.func)[1]
            change = [(end - len(name), end, OPPOSITE_METHODS[name])]
        return change

    def of_expected_error(self, call: ast.Call) -> list:
        """A change of the error or warning that is expected."""
        if not call.args:
            return []
        kind = call.args[0]
        names = WARNINGS if re.search("warn", name_of(call), re.IGNORECASE) else ERRORS
        others = [other for other in names if other not in {name_of(node) for node in ast.walk(kind)}]
        return [(*self.source.span(kind), draw.choice(others))]

    def rows(self) -> list:
        """Changes of one row each of the parameters that a test compares with."""
        sides = [
            side
            for statement in always(self.function.body)
            if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare)
            for side in (statement.test.comparators[0], statement.test.left)
            if isinstance(statement.test.ops[0], ast.Eq) and isinstance(side, ast.Name)
        ]
        for side in sides:
            values = values_of_parameter(self.function, side.id) if self.loads.count(side.id) == 1 else []
            changes = [change for change in map(self.source.other_value, values) if change]
            if changes:
                return changes
        return []


def functions_of(tree: ast.AST, above: str = "") -> dict:
    """Functions of a module and of its classes by name, as in ``Class::test``."""
    functions = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            functions.update(functions_of(node, f"{above}{node.name}::"))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions[above + node.name] = node
    return functions


def edits_of(source: TestModule, names: list) -> list:
    """The changes of each test that can be changed, or of each row of its parameters."""
    functions, edits, shared = functions_of(source.tree), [], {}
    for name in names:
        if name not in functions:
            continue
        test = TestFunction(source, functions[name])
        sure = test.changes(always(test.function.body))
        changes = sure or test.changes(list(ast.walk(test.function)))
        rows = test.rows()
        if rows:
            edits += [{"changes": [row], "tests": [name], "always": True, "row": True} for row in rows]
        elif changes:
            edits.append({"changes": changes, "tests": [name], "always": bool(sure), "row": False})
        else:
            called = {name_of(node) for node in ast.walk(test.function) if isinstance(node, ast.Call)}
            helpers = [other for other in functions if other.split("::")[-1] in called and other not in names]
            for helper in helpers[:1]:
                shared.setdefault(helper, []).append(name)
    for helper, tests in shared.items():
        changes = TestFunction(source, functions[helper]).changes(list(ast.walk(functions[helper])))
        edits.append({"changes": changes, "tests": tests, "always": False, "row": False})
    return parsed(source.data, edits)


def parsed(data: bytes, edits: list) -> list:
    """The edits with those of their changes after which the module is one still."""
    for number in range(MAX_CHANGES):
        changed = [edit for edit in edits if len(edit["changes"]) > number]
        if not is_module(data, [part for edit in changed for part in edit["changes"][number]]):
            for edit in changed:
                edit["changes"][number] = edit["changes"][number] if is_module(data, edit["changes"][number]) else []
    edits = [{**edit, "changes": [change for change in edit["changes"] if change]} for edit in edits]
    return [edit for edit in edits if edit["changes"]]


def is_module(data: bytes, parts: list) -> bool:
    """Whether a module with some parts replaced is one."""
    for begin, end, new in sorted(parts, reverse=True):
        data = data[:begin] + new.encode() + data[end:]
    try:
        return bool(ast.parse(data))
    except (SyntaxError, ValueError):
        return False


def main() -> None:
    """Prints the changes."""
    header = json.loads(sys.stdin.buffer.readline())
    with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as archive:
        try:
            edits = edits_of(TestModule(archive.extractfile(f"./{header['file']}").read()), header["tests"])
        except (KeyError, AttributeError, SyntaxError, ValueError, RecursionError, MemoryError):
            edits = []  # no file of Python that this Python reads
    print(json.dumps(edits))


if __name__ == "__main__":
    main()
