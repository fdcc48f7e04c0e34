"""Style that ruff does not check: short functions, files and positional lists, one class for one public name."""

import ast
from collections import defaultdict
import itertools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_POSITIONAL = 6
MOST_LINES = 60
FILES = sorted(path for folder in ("k2jax", "pallas_kernels", "experiments") for path in (ROOT / folder).rglob("*.py"))
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def positional_parameters(function: ast.AST) -> list[str]:
    """Names of the parameters that callers may give by position, ``self`` and ``cls`` left out."""
    names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
    return [name for name in names if name not in ("self", "cls")]


def functions_that_jax_calls(tree: ast.AST) -> set[str]:
    """Names of functions whose signatures jax decides: those with a VJP rule of their own, and the rules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and any("custom_vjp" in ast.unparse(d) for d in node.decorator_list):
            names.add(node.name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "defvjp":
            names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return names


def long_positional_lists(tree: ast.AST) -> list[str]:
    """Functions with too many positional parameters; bodies of kernels get one parameter per array."""
    called_by_jax = functions_that_jax_calls(tree)
    return [
        f"line {node.lineno}: {node.name}"
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and len(positional_parameters(node)) > MOST_POSITIONAL
        if node.name not in called_by_jax and not (node.name.startswith("_") and node.name.endswith("kernel"))
    ]


def public_classes(trees: dict[str, ast.AST]) -> dict[str, list[str]]:
    """Files that define a public class, by the name of the class."""
    files = defaultdict(list)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(file)
    return files


def test_no_function_takes_more_than_six_positional_parameters():
    """More of them become a record or keyword-only arguments."""
    assert not {file: functions for file, tree in TREES.items() if (functions := long_positional_lists(tree))}


def test_no_two_public_classes_share_a_name():
    assert not {name: files for name, files in public_classes(TREES).items() if len(files) > 1}


def test_no_function_has_more_than_sixty_lines_and_no_file_more_than_four_hundred():
    functions = [
        f"{file}: {node.name}"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno >= MOST_LINES
    ]
    assert not functions
    assert not [file for file in FILES if lines_of([file]) > 400]


def test_no_file_name_stands_in_more_than_two_packages():
    """Benchmarks and commands have the names that their users type, kernels a file for each implementation."""
    folders = defaultdict(set)
    for path in (ROOT / "k2jax").rglob("*.py"):
        if path.parent.name not in ("bench", "env") and path.parent != ROOT / "k2jax":
            folders[path.stem].add(path.parent)
    common = {"__init__", "__main__", "dataset", "loop", "oracle", "report", "setup", "types", "verifier"}
    assert not {name: found for name, found in folders.items() if len(found) > 2 and name not in common}


@pytest.mark.parametrize(
    ("folder", "pattern", "most"), [("train", "**/*.py", 4500), ("rl", "**/*.py", 3500), ("agents", "*.py", 2000)]
)
def test_a_newcomer_s_walk_is_short(folder, pattern, most):
    """See docs/architecture.md; methods, the second sampler and followers stand beside the walk."""
    paths = (ROOT / "k2jax" / folder).glob(pattern)
    files = [path for path in paths if not {"methods", "workers", "followers"} & set(path.parts)]
    assert lines_of(files) <= most


def test_the_loop_of_reinforcement_learning_fits_on_a_screen():
    [train] = [node for node in TREES["k2jax/rl/loop.py"].body if isinstance(node, FUNCTIONS)]
    assert train.end_lineno - train.body[1].lineno < 40


def body_of(node: ast.AST) -> list[ast.stmt]:
    """Statements of a module, class or function; those of other blocks have no docstrings."""
    return node.body if isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS) else []


def stray_docstrings(tree: ast.AST) -> list[int]:
    """Lines of texts that stand behind no assignment and at no beginning, so that they document nothing."""
    return [
        text.lineno
        for node in ast.walk(tree)
        for before, text in itertools.pairwise(body_of(node))
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        if not isinstance(before, ast.Assign | ast.AnnAssign)
    ]


def test_every_docstring_belongs_to_what_stands_before_it():
    assert not {file: lines for file, tree in TREES.items() if (lines := stray_docstrings(tree))}
    assert stray_docstrings(ast.parse('A = 1\n"""Of A."""\n"""Of nothing."""')) == [3]


def lines_of(files) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


SAMPLE = """
@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def product(a, b, c, d, e, f, g): ...
def _forward(a, b, c, d, e, f, g): ...
def _backward(a, b, c, d, e, f, g): ...
product.defvjp(_forward, _backward)
def _multiply_kernel(a, b, c, d, e, f, g): ...
class Engine:
    def step(self, a, b, c, d, e, f): ...
    def run(self, a, b, c, d, e, f, g): ...
def build(a, b, c, d, e, f, *, g): ...
async def serve(a, b, c, d, e, f, g): ...
"""


def test_the_checks_see_what_they_should():
    tree = ast.parse(SAMPLE)
    assert sorted(line.split()[-1] for line in long_positional_lists(tree)) == ["run", "serve"]
    assert public_classes({"a.py": tree, "b.py": tree}) == {"Engine": ["a.py", "b.py"]}
