"""A trajectory as bytes: the arrays of all its nodes one after another, then its structure as JSON.

The types and the order of the arrays are fixed, so that no input names one: every array holds the values of all nodes
in node order, little-endian, and the structure says how many of them belong to each node. Nothing is unpickled.

| part | type | count |
| --- | --- | --- |
| lengths | two uint64 | bytes of the structure, and T: tokens of all nodes |
| versions | int64 | T |
| tokens | int32 | T |
| logprobs | float32 | T |
| free_logprobs | float32 | per node with them: tokens |
| experts | int16 | per node with experts: tokens x layers x active experts |
| mask | uint8 | T, 0 or 1 |
| structure | UTF-8 JSON | to the end |

The nodes are those of the trajectory, then those of each of its sub-episodes, in the order of their numbers and each
followed by its own; the structure of a sub-episode stands in that of the episode that spawned it.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import json
import math
import struct
from typing import Any, get_args

import numpy as np

from k2jax.trajectory.consistency import array_problems
from k2jax.trajectory.types import Node, Purpose, Reward, Status, Trajectory

LARGEST = 2**30
"""Bytes of an encoded trajectory at most: a million tokens with 60 x 8 routed experts each."""
LARGEST_STRUCTURE = 2**26
"""Bytes of a trajectory's JSON at most, which takes many times as much memory once it is parsed."""
DEEPEST = 64
"""Sub-episodes within each other at most, so that whoever reads a trajectory may follow them by recursion."""
_LENGTHS = struct.Struct("<QQ")
_COLUMNS = {
    "versions": "<i8",
    "tokens": "<i4",
    "logprobs": "<f4",
    "free_logprobs": "<f4",
    "experts": "<i2",
    "mask": "|u1",
}


class EncodingError(ValueError):
    """Bytes are no trajectory, or a trajectory cannot be stored; the message says why, in one line."""


def encode(trajectory: Trajectory) -> bytes:
    """Returns a trajectory as bytes, of which ``decode`` makes an equal one.

    Raises:
        EncodingError: an array has another type or shape than Node documents, or what should be JSON values is not:
            NaN, infinity, keys that are no strings, or other objects.
    """
    try:
        every = list(_with_spawned(trajectory))
        for one in every:
            for index, node in enumerate(one.nodes):
                for problem in array_problems(index, node):
                    raise EncodingError(f"node {index}: {problem}")
        structure = json.dumps(_structure(trajectory), allow_nan=False, separators=(",", ":")).encode("ascii")
    except EncodingError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodingError(f"the trajectory {trajectory.key} of {trajectory.task!r} is not JSON: {error}") from None
    nodes = [node for one in every for node in one.nodes]
    parts = [_LENGTHS.pack(len(structure), sum(len(node.tokens) for node in nodes))]
    for name, dtype in _COLUMNS.items():
        arrays = [getattr(node, name) for node in nodes]
        parts += [array.astype(dtype, copy=False).tobytes() for array in arrays if array is not None]
    data = b"".join([*parts, structure])
    if len(data) > LARGEST or len(structure) > LARGEST_STRUCTURE:
        raise EncodingError(
            f"the trajectory {trajectory.key} of {trajectory.task!r} has {len(data):,} bytes, {len(structure):,} of "
            f"them JSON; at most {LARGEST:,} and {LARGEST_STRUCTURE:,} can be stored"
        )
    return data


def _with_spawned(trajectory: Trajectory, depth: int = 0) -> Iterator[Trajectory]:
    """A trajectory and all below it, in the order of their nodes."""
    _check_depth(depth)
    yield trajectory
    for number in sorted(trajectory.spawned):
        yield from _with_spawned(trajectory.spawned[number], depth + 1)


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise EncodingError(f"more than {DEEPEST} sub-episodes lie within each other")


def _structure(trajectory: Trajectory) -> dict[str, Any]:
    reward = trajectory.reward
    added = {} if trajectory.purpose == "train" else {"purpose": trajectory.purpose}
    if trajectory.spawned:
        added["spawned"] = {str(number): _structure(ended) for number, ended in sorted(trajectory.spawned.items())}
    return {
        **added,
        "task": trajectory.task,
        "domain": trajectory.domain,
        "key": [int(part) for part in trajectory.key],
        "status": trajectory.status,
        "error": trajectory.error,
        "metadata": _with_text_keys(trajectory.metadata),
        "reward": None
        if reward is None
        else {
            "value": float(reward.value),
            "parts": {name: float(value) for name, value in _with_text_keys(reward.parts).items()},
            "info": _with_text_keys(reward.info),
        },
        "nodes": [
            {
                "parent": int(node.parent),
                "tokens": len(node.tokens),
                "turn": int(node.turn),
                "temperature": float(node.temperature),
                "finish": node.finish,
                "message": None if node.message is None else _with_text_keys(node.message),
                "experts": None if node.experts is None else list(node.experts.shape[1:]),
                **({} if node.free_logprobs is None else {"free": True}),
            }
            for node in trajectory.nodes
        ],
    }


def _with_text_keys(value: Any) -> Any:
    """A copy of JSON values as plain dicts and lists; other keys than strings would come back as strings."""
    if hasattr(value, "items"):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no string")
        return {key: _with_text_keys(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def decode(data: bytes) -> Trajectory:
    """Returns the trajectory of ``encode``'s bytes; its arrays are read-only views of them.

    Raises:
        EncodingError: the bytes are no trajectory, whatever they are.
    """
    try:
        structure_bytes, count = _LENGTHS.unpack_from(data)
        fixed = _LENGTHS.size + count * (8 + 4 + 4 + 1) + structure_bytes
        if fixed > len(data) or structure_bytes > LARGEST_STRUCTURE:
            raise EncodingError("its lengths are impossible")
        structure = json.loads(data[len(data) - structure_bytes :], parse_constant=_finite, parse_float=_finite)
        return _assemble(structure, data, count, len(data) - structure_bytes)
    except EncodingError:
        raise
    except RecursionError:
        raise EncodingError("its JSON is nested too deep") from None
    except (struct.error, KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:80]
        raise EncodingError(f"its structure is not a trajectory's ({type(error).__name__}: {reason})") from None


def _finite(text: str) -> float:
    """A number as ``encode`` writes them, so that whatever is made of a trajectory is JSON, too."""
    if not math.isfinite(number := float(text)):
        raise EncodingError(f"it has the number {text[:20]}")
    return number


def _assemble(structure: dict[str, Any], data: bytes, count: int, end: int) -> Trajectory:
    """The trajectory of a parsed structure and the arrays before it, of which T = ``count``."""
    every = list(_structures(structure))
    listed = [entry for each in every for entry in each["nodes"]]
    shapes = [_expert_shape(entry) for entry in listed]
    expert_values = sum(math.prod(shape) for shape in shapes if shape is not None)
    free_values = sum(_natural(entry["tokens"]) for entry in listed if _is_free(entry))
    counts = dict.fromkeys(_COLUMNS, count) | {"experts": expert_values, "free_logprobs": free_values}
    if sum(_natural(entry["tokens"]) for entry in listed) != count:
        raise EncodingError("its nodes have other lengths than its arrays")
    columns, start = {}, _LENGTHS.size
    for name, dtype in _COLUMNS.items():
        size = counts[name] * np.dtype(dtype).itemsize
        if start + size > end:
            raise EncodingError("its shapes exceed its bytes")
        columns[name] = np.frombuffer(data, dtype, counts[name], start)
        start += size
    if start != end:
        raise EncodingError("its shapes leave bytes over")
    if count and columns["mask"].max() > 1:
        raise EncodingError("its mask has values other than 0 and 1")
    trajectory = _without_nodes(structure)
    owners = list(_with_spawned(trajectory))
    token, value, free = 0, 0, 0
    for owner, each in zip(owners, every, strict=True):
        for entry in each["nodes"]:
            shape = _expert_shape(entry)
            tokens = slice(token, token + entry["tokens"])
            experts = None
            if shape is not None:
                experts = columns["experts"][value : value + math.prod(shape)].reshape(shape)
                value += math.prod(shape)
            node = _node(entry, columns, tokens, experts)
            if _is_free(entry):
                logprobs = columns["free_logprobs"][free : free + entry["tokens"]]
                node, free = dataclasses.replace(node, free_logprobs=logprobs), free + entry["tokens"]
            owner.add(node)  # refuses a parent that is no earlier node
            token = tokens.stop
    return trajectory


def _structures(structure: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """A parsed structure and all below it, in the order of their nodes."""
    _check_depth(depth)
    yield structure
    for number in sorted(structure.get("spawned", {}), key=_number):
        yield from _structures(structure["spawned"][number], depth + 1)


def _number(text: str) -> int:
    """The number of a sub-episode."""
    if not (text.isascii() and text.isdecimal() and text == str(int(text))):
        raise EncodingError("a sub-episode has no number")
    return int(text)


def _node(entry: dict[str, Any], columns: dict[str, np.ndarray], tokens: slice, experts: np.ndarray | None) -> Node:
    return Node(
        parent=_typed(entry["parent"], int),
        tokens=columns["tokens"][tokens],
        mask=columns["mask"][tokens].view(np.bool_),
        logprobs=columns["logprobs"][tokens],
        versions=columns["versions"][tokens],
        turn=_typed(entry["turn"], int),
        temperature=_typed(entry["temperature"], float),
        finish=_typed(entry["finish"], str),
        message=None if entry["message"] is None else _typed(entry["message"], dict),
        experts=experts,
    )


def _without_nodes(structure: dict[str, Any]) -> Trajectory:
    reward, (step, prompt, sample) = structure["reward"], structure["key"]
    if structure["status"] not in get_args(Status):
        raise EncodingError("its status is unknown")
    if (purpose := structure.get("purpose", "train")) not in get_args(Purpose):
        raise EncodingError("its purpose is unknown")
    if reward is not None:
        parts = {name: _typed(value, float) for name, value in _typed(reward["parts"], dict).items()}
        reward = Reward(_typed(reward["value"], float), parts, _typed(reward["info"], dict))
    return Trajectory(
        task=_typed(structure["task"], str),
        domain=_typed(structure["domain"], str),
        key=(_typed(step, int), _typed(prompt, int), _typed(sample, int)),
        status=structure["status"],
        reward=reward,
        error=_typed(structure["error"], str),
        metadata=_typed(structure["metadata"], dict),
        purpose=purpose,
        spawned={_number(number): _without_nodes(each) for number, each in structure.get("spawned", {}).items()},
    )


def _is_free(entry: dict[str, Any]) -> bool:
    """Whether a node has ``free_logprobs``, which older trajectories do not speak of."""
    return _typed(entry.get("free", False), bool)


def _expert_shape(entry: dict[str, Any]) -> tuple[int, int, int] | None:
    if entry["experts"] is None:
        return None
    layers, active = entry["experts"]
    return _natural(entry["tokens"]), _natural(layers), _natural(active)


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise EncodingError("it has a length that is no natural number")
    return value


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise EncodingError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value
