"""One episode's world: tools are called, every change is checked, and a log of the calls gives the same state again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import hashlib
import json
from typing import Any, NamedTuple

from k2jax.agents.toolsets.types import ToolError
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.worlds.failures import MESSAGES, NOTHING_DONE, FailureRates, Fate, share
from k2jax.tasks.worlds.semantics import Scope, SemanticsError, State, answer, apply, holds
from k2jax.tasks.worlds.world_spec import WorldSpec, is_of_type

MOST_RECORDS = 10_000
NO_FAILURES = FailureRates()


class WorldFaultError(Exception):
    """A tool's semantics would break the world's rules: the tool is wrong, and its call has changed nothing."""


class WorldCall(NamedTuple):
    """A call as the log has it.

    Attributes:
        name: of the tool.
        arguments: of the call.
        fate: what went wrong with it, or ``success``.
        error: whether its answer is an error.
        text: its answer, as the agent sees it.
        changed: ``[collection, id]`` of the records that it changed, created or deleted.
    """

    name: str
    arguments: Mapping[str, Any]
    fate: Fate
    error: bool
    text: str
    changed: tuple[tuple[str, str], ...] = ()


class SimulatedWorld:
    """A state of records and the tools that change it.

    Example:
        >>> world = SimulatedWorld(read_world(spec), {"accounts": {"a1": {"balance": 5}}})
        >>> world.call("get_account", {"account_id": "a1"})

    Args:
        spec: what it is made of.
        state: the first records of its collections; it is not changed.
        rates: of failures.
        seed: of failures.

    Attributes:
        state: the records now; rows are replaced, never changed.
        log: all calls so far.

    Raises:
        UserError: the first state breaks the world's rules.
    """

    def __init__(self, spec: WorldSpec, state: Mapping[str, Any], rates: FailureRates = NO_FAILURES, seed: int = 0):
        self.spec, self._rates, self._seed = spec, rates, seed
        self.state, self.log = _read_state(spec, state), []
        self._before = self.state  # the last change
        self._totals = self._sums(self.state)
        self._numbers = {name: _last_number(rows) for name, rows in self.state.items()}
        if mistake := self.broken_rule(self.state):
            raise UserError(f"the first state of the world {spec.name} breaks its rules: {mistake}")

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers, as text.

        Args:
            name: of one of the world's tools.
            arguments: valid under its schema.

        Raises:
            ToolError: the call is refused or fails; the agent sees the message.
            WorldFaultError: the tool is wrong.
        """
        number = len(self.log)
        fate = self._rates.draw(self._seed, number)
        changed: tuple[tuple[str, str], ...] = ()
        try:
            if fate in NOTHING_DONE:
                raise ToolError(MESSAGES[fate])
            text = ""
            if fate != "timeout" or share(self._seed, number, "timeout") >= 0.5:  # of the others nothing is done
                text, changed = self._carry_out(self.spec.tools_by_name[name], arguments, fate)
            if fate == "timeout":
                raise ToolError(MESSAGES[fate])
        except ToolError as error:
            self.log.append(WorldCall(name, dict(arguments), fate, True, str(error), changed))
            raise
        self.log.append(WorldCall(name, dict(arguments), fate, False, text, changed))
        return text

    def digest(self) -> str:
        """Hash of the state."""
        return hashlib.sha256(json.dumps(self.state, sort_keys=True).encode()).hexdigest()

    def broken_rule(self, state: State) -> str:
        """Which rule a state breaks, as a clause; empty for none: types, references, totals and invariants."""
        for name, collection in self.spec.collections.items():
            if len(state[name]) > MOST_RECORDS:
                return f"{name} has more than {MOST_RECORDS:,} records"
            for key, row in state[name].items():
                if mistake := _mistake_of(row, collection["fields"], state):
                    return f"{name} {abbreviate(key)}: {mistake}"
        if (sums := self._sums(state)) != self._totals:
            [first, *_] = [name for name, total in sums.items() if total != self._totals[name]]
            return f"the invariant {first} does not hold: {self._totals[first]} became {sums[first]}"
        for invariant in self.spec.invariants:
            if "each" in invariant and (key := self._violating(invariant, state)):
                return f"the invariant {invariant['name']} does not hold for {key}"
        return ""

    def reached(self, goal: Iterable[Mapping[str, Any]]) -> list[bool]:
        """Which conditions of a goal hold now; one about what does not exist does not."""
        scope = Scope(self.state, {}, self._new_id)
        return [_holds(condition, scope) for condition in goal]

    def _carry_out(
        self, tool: Mapping[str, Any], arguments: Mapping[str, Any], fate: Fate
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Answer and changed records of a call that reaches its tool."""
        scope = Scope(self.state, arguments, self._new_id)
        for required in tool["requires"]:
            if not _holds(required["condition"], scope):
                raise ToolError(_filled(required["error"], arguments))
        before, draft = self.state, {name: dict(rows) for name, rows in self.state.items()}
        after = scope._replace(state=draft)
        try:
            apply(tool["effects"], after)
            if mistake := self.broken_rule(draft) if tool["effects"] else "":
                raise WorldFaultError(f"the tool {tool['name']} of the world {self.spec.name}: {mistake}")
            found = _stale_or(scope._replace(state=self._shown(draft, fate)), after, tool["returns"])
        except SemanticsError as error:
            raise ToolError(str(error)) from None
        changed = _changes(before, draft)
        if changed:
            self._before, self.state = before, draft
            self._numbers = {name: max(n, _last_number(draft[name])) for name, n in self._numbers.items()}
        return _text(found, fate), changed

    def _shown(self, draft: State, fate: Fate) -> State:
        """What an answer is about: of a stale one the state before the last change."""
        if fate != "stale":
            return draft
        return self.state if _changes(self.state, draft) else self._before

    def _new_id(self, collection: str) -> str:
        return f"{self.spec.collections[collection]['prefix']}{self._numbers[collection] + 1}"

    def _sums(self, state: State) -> dict[str, float]:
        return {
            invariant["name"]: sum(
                row.get(field) or 0 for collection, field in invariant["total"] for row in state[collection].values()
            )
            for invariant in self.spec.invariants
            if "total" in invariant
        }

    def _violating(self, invariant: Mapping[str, Any], state: State) -> str:
        for key, row in state[invariant["each"]].items():
            if not _holds(invariant["holds"], Scope(state, {}, self._new_id, row)):
                return key
        return ""


def replayed(
    spec: WorldSpec,
    state: Mapping[str, Any],
    calls: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    rates: FailureRates = NO_FAILURES,
    seed: int = 0,
) -> SimulatedWorld:
    """A new world after calls; refused ones and faults of tools change nothing, as they did before."""
    world = SimulatedWorld(spec, state, rates, seed)
    for name, arguments in calls:
        try:
            world.call(name, arguments)
        except (ToolError, WorldFaultError):
            continue
    return world


def _read_state(spec: WorldSpec, state: Any) -> State:
    """Copies of the collections; those that are not named are empty."""
    if not isinstance(state, Mapping) or not set(state) <= set(spec.collections):
        raise UserError(f"the first state of the world {spec.name} has other collections than the world")
    read: State = {}
    for name in spec.collections:
        rows = state.get(name, {})
        if not isinstance(rows, Mapping) or not all(isinstance(row, Mapping) for row in rows.values()):
            raise UserError(f"the first state of the world {spec.name} has no records in {name}")
        read[name] = {str(key): dict(row) for key, row in rows.items()}
    return read


def _mistake_of(row: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]], state: State) -> str:
    if unknown := next((name for name in row if name not in fields), ""):
        return f"the field {abbreviate(unknown)} does not exist"
    for name, field in fields.items():
        value = row.get(name)
        if not is_of_type(value, field):
            return f"{name} cannot be {abbreviate(value)}"
        if "refers" in field and value is not None and value not in state[field["refers"]]:
            return f"{name} refers to {abbreviate(value)}, which is not in {field['refers']}"
    return ""


def _holds(condition: Mapping[str, Any], scope: Scope) -> bool:
    try:
        return holds(condition, scope)
    except SemanticsError:
        return False


def _stale_or(shown: Scope, after: Scope, returns: Mapping[str, Any]) -> Any:
    """The answer about what is shown, or about the state now where a stale one has not what is asked for."""
    try:
        return answer(returns, shown)
    except SemanticsError:
        return answer(returns, after)


def _changes(before: State, after: State) -> tuple[tuple[str, str], ...]:
    """The records that differ, which are found by identity first."""
    return tuple(
        (name, key)
        for name, rows in after.items()
        for key in sorted(before[name].keys() | rows.keys())
        if before[name].get(key) is not rows.get(key) and before[name].get(key) != rows.get(key)
    )


def _last_number(rows: Iterable[str]) -> int:
    """The largest number at the end of an id."""
    digits = [key[len(key.rstrip("0123456789")) :] for key in rows]
    return max((int(text[-9:]) for text in digits if text), default=0)


def _filled(text: str, arguments: Mapping[str, Any]) -> str:
    """An error with the values of arguments in the place of ``{name}``; anything else in braces stays as it is."""
    for name, value in arguments.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _text(found: Any, fate: Fate) -> str:
    """An answer as the agent sees it: partial ones lack their second half and say so, unusual ones are wrapped."""
    if fate == "partial" and isinstance(found, list):
        found = {"items": found[: (len(found) + 1) // 2], "complete": False, "total": len(found)}
    elif fate == "partial" and isinstance(found, Mapping):
        names = list(found)[: (len(found) + 1) // 2]
        found = {name: found[name] for name in names} | {"complete": False}
    elif fate == "edge":
        found = {"status": "ok", "warnings": [], "data": {"result": found}}
    return json.dumps(found, ensure_ascii=False)
