"""Formats against rows that are written by hand, and against a definition token by token on any tree."""

import json

from hypothesis import given, settings
import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.trajectory import (
    Node,
    Trajectory,
    exported,
    format_named,
    format_rows,
    formats,
    register_format,
    write_jsonl,
)
from tests.trajectory.trees import chat, sampled, trajectories

ABOUT = {"task": "sum-3", "domain": "math", "key": [7, 2, 0], "status": "finished", "reward": 1.0}
LOGPROB = {token: float(np.float32(-0.1 * token)) for token in range(20)}


def by_hand(tokens, trained, versions, turns, cold=()):
    """A sequence of ``chat`` as JSON; tokens that were sampled have versions."""
    return ABOUT | {
        "tokens": tokens,
        "mask": [token in trained for token in tokens],
        "logprobs": [LOGPROB[token] if version >= 0 else 0.0 for token, version in zip(tokens, versions, strict=True)],
        "versions": versions,
        "turns": turns,
        "temperatures": [0.5 if token in cold else 1.0 for token in tokens],
    }


MAIN = [1, 2, 3, 4, 5, 6, 7, 8, 9], [-1, -1, -1, 3, 3, -1, 4, 4, 4], [-1, -1, -1, 0, 0, -1, 1, 1, 1]
SIDE = [1, 2, 3, 10], [-1, -1, -1, 4], [-1, -1, -1, 2]
EXPECTED = {
    "paths": [
        by_hand(MAIN[0], {4, 5, 7, 8, 9}, *MAIN[1:]),
        by_hand(SIDE[0], {10}, *SIDE[1:], cold={10}),
    ],
    "turns": [
        by_hand(MAIN[0][:5], {4, 5}, MAIN[1][:5], MAIN[2][:5]),
        by_hand(MAIN[0], {7, 8, 9}, *MAIN[1:]),
        by_hand(SIDE[0], {10}, *SIDE[1:], cold={10}),
    ],
    "flat": [by_hand(SIDE[0], {10}, *SIDE[1:], cold={10})],
    "tree": [
        by_hand([*MAIN[0], 10], {4, 5, 7, 8, 9, 10}, [*MAIN[1], 4], [*MAIN[2], 2], cold={10})
        | {
            "positions": [0, 1, 2, 3, 4, 5, 6, 7, 8, 3],
            "parent": [-1, 0, 1, 2, 3, 4, 5, 6, 7, 2],
            "exit": [10, 10, 10, 9, 9, 9, 9, 9, 9, 10],
        }
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_rows_of_an_episode_are_those_written_by_hand(name, tmp_path):
    assert list(exported([chat()], name)) == EXPECTED[name]
    assert write_jsonl(tmp_path / "rows.jsonl", exported([chat(), chat()], name)) == 2 * len(EXPECTED[name])
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == 2 * EXPECTED[name]


def test_rows_are_cut_at_their_end_and_left_out_where_nothing_is_trained():
    assert [row["tokens"] for row in exported([chat()], "turns", 4)] == [[1, 2, 3, 4], [1, 2, 3, 10]]
    assert [row["tokens"] for row in exported([chat()], "paths", 3)] == []
    (tree,) = exported([chat()], "tree", 7)
    assert (tree["tokens"], tree["exit"]) == ([1, 2, 3, 4, 5, 6, 7], [7] * 7)
    assert list(exported([Trajectory("t", "d", (0, 0, 0))], "flat")) == []


def definition(trajectory, index, place):
    """What a row must say of a token, from the tree alone: (token, logprob, version, turn, node, depth)."""
    node = trajectory.nodes[index]
    before, parent = 0, node.parent
    while parent >= 0:
        before += len(trajectory.nodes[parent].tokens)
        parent = trajectory.nodes[parent].parent
    bits = node.logprobs[place].tobytes()
    return int(node.tokens[place]), bits, int(node.versions[place]), node.turn, index, before + place


def ancestors(trajectory, index, place):
    """(node, place) of every token before a token on its path, the first one first."""
    path, node = [(index, earlier) for earlier in range(place)], trajectory.nodes[index].parent
    while node >= 0:
        path = [(node, earlier) for earlier in range(len(trajectory.nodes[node].tokens))] + path
        node = trajectory.nodes[node].parent
    return path


def places(row):
    """(node, place) of each token of a row, which holds nodes in one piece."""
    return [(int(node), int((row.nodes[:index] == node).sum())) for index, node in enumerate(row.nodes)]


@settings(max_examples=60)
@given(trajectory=trajectories())
def test_rows_of_any_tree_say_of_each_token_what_the_tree_says(trajectory):
    trainable = {
        (index, place) for index, node in enumerate(trajectory.nodes) for place in np.flatnonzero(node.mask).tolist()
    }
    for name in EXPECTED:
        trained = []
        for row in format_rows(trajectory, name):
            where = places(row)
            for index, (node, place) in enumerate(where):
                said = row.tokens[index], row.logprobs[index].tobytes(), row.versions[index], row.turns[index]
                assert (*said, node, row.positions[index]) == definition(trajectory, node, place)
                visible = [where[j] for j in range(index) if row.exit[j] > index]  # the rule of PackedBatch
                assert visible == ancestors(trajectory, node, place)
                before = row.parent[index]
                assert (where[before] if before >= 0 else None) == (visible[-1] if visible else None)
            trained += [where[index] for index in np.flatnonzero(row.mask)]
            assert row.mask.any() and all(array.dtype != object for array in (row.tokens, row.exit))
        if name in ("tree", "turns"):
            assert sorted(trained) == sorted(trainable)  # each exactly once
        else:
            assert set(trained) <= trainable
        if name == "paths":
            leaves = [leaf for leaf in trajectory.leaves()]
            for node, place in trainable:
                assert trained.count((node, place)) == sum(node in trajectory.path(leaf) for leaf in leaves)


def test_a_node_without_tokens_passes_its_parent_on_and_roots_stay_in_order():
    trajectory = Trajectory("t", "d", (0, 0, 0))
    root = trajectory.add(Node.observed(-1, [1]))
    trajectory.add(sampled(root, [2]))
    empty = trajectory.add(Node.observed(root, []))
    trajectory.add(sampled(empty, [3], turn=1))
    trajectory.add(sampled(-1, [4], turn=2))
    (row,) = format_rows(trajectory, "tree")
    assert (row.tokens.tolist(), row.parent.tolist()) == ([1, 2, 3, 4], [-1, 0, 0, -1])
    assert (row.positions.tolist(), row.exit.tolist()) == ([0, 1, 1, 0], [3, 2, 3, 4])


def test_what_was_not_sampled_within_a_turn_has_the_temperature_1():
    trajectory = chat()
    trajectory.nodes[4].versions[:] = -1
    trajectory.add(sampled(4, [11], turn=3, version=4, temperature=0.25))
    assert format_rows(trajectory, "flat")[0].temperatures.tolist() == [1, 1, 1, 1, 0.25]


def test_paths_that_share_a_prefix_are_neighbours():
    trajectory = Trajectory("t", "d", (0, 0, 0))
    root = trajectory.add(Node.observed(-1, [1]))
    left, right = trajectory.add(sampled(root, [2])), trajectory.add(sampled(root, [3]))
    for parent, token in ((left, 4), (right, 5), (left, 6), (right, 7)):
        trajectory.add(sampled(parent, [token], turn=token))
    assert [row.tokens.tolist() for row in format_rows(trajectory, "paths")] == [
        [1, 2, 4], [1, 2, 6], [1, 3, 5], [1, 3, 7]]  # fmt: skip


def test_formats_are_found_by_name_and_others_can_be_registered(monkeypatch):
    monkeypatch.setattr(formats, "_FORMATS", dict(formats._FORMATS))
    with pytest.raises(UserError, match="did you mean 'paths'"):
        format_named("pathes")

    class LastTurn:
        def assemble(self, trajectory):
            return format_rows(trajectory, "turns")[-1:]

        def reorder(self, rows):
            return rows

        def truncate(self, row, length):
            return row.cut(length)

    register_format("last_turn", LastTurn())
    assert [row["tokens"] for row in exported([chat()], "last_turn")] == [[1, 2, 3, 10]]
    with pytest.raises(UserError, match="already"):
        register_format("tree", LastTurn())


def test_a_log_probability_that_is_not_finite_is_not_exported(tmp_path):
    trajectory = chat()
    trajectory.nodes[1].logprobs[0] = np.nan
    with pytest.raises(UserError, match=r"record 0 of .*verify"):
        write_jsonl(tmp_path / "rows.jsonl", exported([trajectory], "turns"))
