"""The verifier of reasoning-gym tasks: the package's own score of the text between ``<answer>`` and ``</answer>``.

Some of the package's scores evaluate the answer as Python. Only plain expressions reach those: numbers, text, lists and
arithmetic, and calls of a few mathematical functions.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import Any

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.agents.verifier_pool.needed_packages import needs
from k2jax.tasks.reasoning_gym.dataset import ANSWER_FORMAT, PACKAGE
from k2jax.tasks.reasoning_gym.json_values import from_json_values
from k2jax.trajectory import Reward

EVALUATED = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
"""Generators whose score calls Python's ``eval`` on the answer."""
PARSED_BY_SYMPY = {
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
}
"""Generators whose score gives the answer to SymPy's parser, which evaluates it as Python after changes."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
_PLAIN = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Name, ast.Load, *_OPERATIONS)
_FUNCTIONS = {"Abs", "acos", "asin", "atan", "cos", "cosh", "exp", "log", "ln", "sin", "sinh", "sqrt", "tan", "tanh"}


@needs(PACKAGE.load)
@judges_every_answer(lambda task: f"<answer>{task.metadata['entry']['answer']}</answer>", worth=None)
def reasoning_gym(task: Task, answer: str) -> Reward:
    """Score of the last marked answer, in [0, 1]; 0 without one."""
    found = _ANSWER.findall(answer)
    text = found[-1].strip() if found else ""
    if not text:
        return Reward(0.0, info={"marked": False})
    name = task.metadata["generator"]
    if not may_be_scored(name, text):
        return Reward(0.0, info={"marked": True, "refused": "not a plain expression"})
    entry = from_json_values(task.metadata["entry"])
    entry["question"] = task.instruction[-1]["content"].removesuffix(ANSWER_FORMAT)
    return Reward(float(_dataset(name).score_answer(text, entry)), info={"marked": True})


def may_be_scored(generator: str, answer: str) -> bool:
    """Whether the score of a generator cannot be made to run code by this answer."""
    if generator not in EVALUATED | PARSED_BY_SYMPY:
        return True
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return generator in EVALUATED  # eval refuses it just so; SymPy changes the text first
    return all(map(_is_plain, ast.walk(tree)))


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    return isinstance(node, _PLAIN)


@functools.cache
def _dataset(name: str) -> Any:
    kind, config = PACKAGE.load().DATASETS[name]
    return kind(config=config())
