"""The language in which tools say what they need of a world, change in it and answer: JSON, and nothing is executed.

An expression is a constant, or an object with one key:

- ``{"arg": name}``: an argument of the call; None where an optional one was left out;
- ``{"field": [collection, expression, field]}``: of the record with that id;
- ``{"plus": [a, b]}``, ``{"minus": [a, b]}``: of numbers;
- ``{"new": collection}``: the id of the next record of a collection;
- ``{"this": field}``: in an invariant, a field of the record that is checked.

A condition is ``{"exists": [collection, id]}``, ``{"equal": [a, b]}``, ``{"at_least": [a, b]}``,
``{"one_of": [a, [constant, ...]]}``, ``{"given": name}`` (an optional argument), ``{"not": condition}``,
``{"all": [condition, ...]}`` or ``{"any": [condition, ...]}``.

An effect is ``{"set": [collection, id, field, value]}``, ``{"create": [collection, id, {field: value}]}``,
``{"delete": [collection, id]}`` or ``{"when": [condition, [effect, ...]]}``.

An answer is ``{"record": [collection, id]}``, ``{"find": [collection, {field: value}]}`` (a filter whose value is None
is left out) or ``{"value": expression}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from k2jax.errors import abbreviate

Rows = dict[str, dict[str, Any]]
State = dict[str, Rows]
"""Records by collection and id."""
MOST_DEPTH = 8
"""Levels of an expression, condition or effect at most."""


class SemanticsError(Exception):
    """A tool cannot do what its semantics say: a record or field is missing, or a value is of a wrong type."""


class Scope(NamedTuple):
    """What an expression may refer to.

    Attributes:
        state: the world's records.
        arguments: of the call.
        new_id: the id of the next record of a collection.
        this: the record that an invariant is about.
    """

    state: State
    arguments: Mapping[str, Any]
    new_id: Callable[[str], str]
    this: Mapping[str, Any] | None = None


def is_operation(value: Any) -> bool:
    """Whether a value is an object with one key."""
    return isinstance(value, Mapping) and len(value) == 1


def row_of(scope: Scope, collection: str, key: Any) -> dict[str, Any]:
    """A record.

    Raises:
        SemanticsError: there is none.
    """
    rows = scope.state[collection]
    if not isinstance(key, str) or key not in rows:
        raise SemanticsError(f"{collection} has no record {abbreviate(key)}")
    return rows[key]


def evaluate(expression: Any, scope: Scope) -> Any:
    """The value of an expression.

    Raises:
        SemanticsError: it has none.
    """
    if not isinstance(expression, Mapping):
        return expression
    [(kind, of)] = expression.items()
    if kind == "arg":
        return scope.arguments.get(of)
    if kind == "this":
        return (scope.this or {}).get(of)
    if kind == "new":
        return scope.new_id(of)
    if kind == "field":
        collection, key, field = of
        return row_of(scope, collection, evaluate(key, scope)).get(field)
    first, second = (_number(evaluate(part, scope)) for part in of)
    return first + second if kind == "plus" else first - second


def holds(condition: Mapping[str, Any], scope: Scope) -> bool:
    """Whether a condition holds.

    Raises:
        SemanticsError: an expression in it has no value.
    """
    [(kind, of)] = condition.items()
    if kind == "not":
        return not holds(of, scope)
    if kind in ("all", "any"):
        return (all if kind == "all" else any)(holds(part, scope) for part in of)
    if kind == "given":
        return scope.arguments.get(of) is not None
    if kind == "exists":
        key = evaluate(of[1], scope)
        return isinstance(key, str) and key in scope.state[of[0]]
    if kind == "one_of":
        return same_in(evaluate(of[0], scope), of[1])
    first, second = (evaluate(part, scope) for part in of)
    return same(first, second) if kind == "equal" else _number(first) >= _number(second)


def apply(effects: Sequence[Mapping[str, Any]], scope: Scope) -> None:
    """Carries out effects in order on ``scope.state``, whose rows are replaced and not changed.

    Raises:
        SemanticsError: one is impossible; those before it stand.
    """
    for effect in effects:
        [(kind, of)] = effect.items()
        if kind == "when":
            if holds(of[0], scope):
                apply(of[1], scope)
            continue
        collection, key = of[0], evaluate(of[1], scope)
        rows = scope.state[collection]
        if kind == "create":
            if not isinstance(key, str) or key in rows:
                raise SemanticsError(f"{collection} cannot have a second record {abbreviate(key)}")
            rows[key] = {field: evaluate(value, scope) for field, value in of[2].items()}
        elif kind == "set":
            rows[key] = row_of(scope, collection, key) | {of[2]: evaluate(of[3], scope)}
        else:
            row_of(scope, collection, key)
            del rows[key]


def answer(returns: Mapping[str, Any], scope: Scope) -> Any:
    """What a tool answers: a record with its id, a list of them in the order of ids, or a value.

    Raises:
        SemanticsError: there is no such record.
    """
    [(kind, of)] = returns.items()
    if kind == "value":
        return evaluate(of, scope)
    collection = of[0]
    if kind == "record":
        key = evaluate(of[1], scope)
        return {"id": key, **row_of(scope, collection, key)}
    wanted = {field: evaluate(value, scope) for field, value in of[1].items()}
    wanted = {field: value for field, value in wanted.items() if value is not None}
    rows = scope.state[collection].items()
    return [{"id": key, **row} for key, row in sorted(rows) if all(same(row.get(f), v) for f, v in wanted.items())]


def same(first: Any, second: Any) -> bool:
    """Whether two values of JSON are equal; true is not 1."""
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def same_in(value: Any, values: Sequence[Any]) -> bool:
    """Whether a value is among others."""
    return any(same(value, other) for other in values)


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SemanticsError(f"{abbreviate(value)} is no number")
    return value
