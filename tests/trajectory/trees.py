"""Trajectories for tests: one made by hand, any of hypothesis, and their equality."""

from collections.abc import Mapping

from hypothesis import strategies as st
import numpy as np

from k2jax.trajectory import Node, Reward, Trajectory

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(st.text(), JSON, max_size=3)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def sampled(parent, tokens, *, turn=0, version=3, temperature=1.0, message=None, finish="stop"):
    """A node that a policy sampled, with log-probabilities that name its tokens."""
    count = len(tokens)
    return Node(
        parent,
        np.asarray(tokens, np.int32),
        np.ones(count, np.bool_),
        np.asarray([-0.1 * token for token in tokens], np.float32),
        versions=np.full(count, version, np.int64),
        turn=turn,
        temperature=temperature,
        finish=finish,
        message=message,
    )


def message(role, content, **more):
    """A message in OpenAI's format."""
    return {"role": role, "content": content, **more}


def call(name, arguments, number=0):
    """A message's tool call in OpenAI's format."""
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(sample=0, reward=1.0):
    """An episode of two turns with a tool, and a branch from the prompt that was cut off."""
    trajectory = Trajectory(
        "sum-3", "math", (7, 2, sample), status="finished", reward=Reward(reward, {"right": reward})
    )
    prompt = trajectory.add(Node.observed(-1, [1, 2, 3], message("user", "1+2?")))
    asked = sampled(prompt, [4, 5], message=message("assistant", "", tool_calls=[call("add", '{"a": 1, "b": 2}')]))
    first = trajectory.add(asked)
    tool = trajectory.add(Node.observed(first, [6], message("tool", "3", tool_call_id="call_0")))
    trajectory.add(sampled(tool, [7, 8, 9], turn=1, version=4, message=message("assistant", "3")))
    trajectory.add(sampled(prompt, [10], turn=2, version=4, temperature=0.5, finish="length"))
    return trajectory


@st.composite
def nodes(draw, index):
    """Any node that can be the tree's next, with arrays of any values."""
    count = draw(st.integers(0, 5))

    def array(dtype, *shape):
        bits = np.dtype(dtype).itemsize * int(np.prod((count, *shape)))
        return np.frombuffer(draw(st.binary(min_size=bits, max_size=bits)), dtype).reshape(count, *shape)

    mask = np.asarray(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    experts = array(np.int16, *draw(st.tuples(st.integers(0, 3), st.integers(0, 2)))) if draw(st.booleans()) else None
    return Node(
        draw(st.integers(-1, index - 1)),
        array(np.int32),
        mask,
        array(np.float32),
        versions=array(np.int64),
        turn=draw(st.integers(-1, 9)),
        temperature=draw(st.floats(0, 100, width=32)),
        finish=draw(st.sampled_from(["", "stop", "length"])),
        message=draw(st.none() | OBJECT),
        experts=experts,
        free_logprobs=array(np.float32) if draw(st.booleans()) else None,
    )


@st.composite
def trajectories(draw):
    """Any trajectory, sensible or not."""
    reward = draw(st.none() | st.builds(Reward, FINITE, st.dictionaries(st.text(), FINITE, max_size=2), OBJECT))
    trajectory = Trajectory(
        draw(st.text()),
        draw(st.text()),
        draw(st.tuples(*[st.integers(0, 2**40)] * 3)),
        status=draw(st.sampled_from(["unfinished", "finished", "truncated", "masked"])),
        reward=reward,
        error=draw(st.text()),
        metadata=draw(OBJECT),
    )
    for index in range(draw(st.integers(0, 4))):
        trajectory.add(draw(nodes(index)))
    return trajectory


def contents(value):
    """A trajectory, node or value as nested tuples that compare by every bit; arrays by type, shape and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple(sorted((key, contents(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(contents, value))
    if hasattr(value, "__dataclass_fields__"):
        return tuple((name, contents(getattr(value, name))) for name in value.__dataclass_fields__)
    return type(value).__name__, repr(value)
