"""What the page shows of trees, turns, a critic's verdicts and what training left out, against plain counts."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.viewer.tree_picture import outline_of
from k2jax.trajectory import Node, Reward, Trajectory
from k2jax.trajectory.annotations import (
    PairVerdict,
    TrainingMarks,
    comparisons,
    other_metadata,
    set_comparisons,
    set_training,
    training,
)
from k2jax.trajectory.encoding import decode, encode
from tests.agents.viewer.test_viewer import check, page_of
from tests.trajectory.trees import JSON, chat, sampled

VERDICTS = [
    PairVerdict(1, ("first", "second"), ("A is shorter", "B is shorter"), ("relevance (core)",)),
    PairVerdict(2, ("first", "first"), ("A", "A")),
    PairVerdict(3, error="the server is gone"),
]


@st.composite
def forests(draw):
    """Trajectories of any shape; turns are numbered in order."""
    trajectory = Trajectory("task", "domain", (1, 0, 0), status="finished", reward=Reward(1.0))
    for index in range(draw(st.integers(1, 9))):
        parent, count = draw(st.integers(-1, index - 1)), draw(st.integers(0, 40))
        if draw(st.booleans()):
            trajectory.add(sampled(parent, [1] * count, turn=index))
        else:
            trajectory.add(Node.observed(parent, [2] * count))
    return trajectory


def boxes(page):
    """Left, top, width and height of the picture's nodes by index, whose links follow each other."""
    found, current = {}, None
    for tag, attributes in page.elements:
        if tag == "a" and attributes["href"].startswith("#e0n"):
            current = int(attributes["href"].removeprefix("#e0n"))
        if tag == "rect":
            found[current] = [float(attributes[name]) for name in ("x", "y", "width", "height")]
    return found


@settings(max_examples=10)
@given(forests())
def test_a_node_is_as_high_as_it_has_paths_and_begins_where_its_parent_ends(tmp_path_factory, trajectory):
    paths = [trajectory.path(leaf) for leaf in trajectory.leaves()]
    shape = outline_of(trajectory)
    assert shape.paths == [sum(index in path for path in paths) for index in range(len(trajectory.nodes))]
    assert shape.depth == [len(trajectory.path_tokens(node.parent)) for node in trajectory.nodes]
    drawn = boxes(check(page_of(tmp_path_factory.mktemp("page"), [trajectory])))
    if len(trajectory.nodes) == 1:
        assert not drawn
        return
    assert sorted(drawn) == list(range(len(trajectory.nodes)))
    row = min(32, 520 / len(paths))
    for index, node in enumerate(trajectory.nodes):
        left, top, width, height = drawn[index]
        assert height == pytest.approx(shape.paths[index] * row - 3, abs=0.2)
        assert left + width <= 1060
        for other in range(index):
            assert width <= drawn[other][2] + 0.2 or len(node.tokens) > len(trajectory.nodes[other].tokens)
            if trajectory.nodes[other].parent == node.parent:  # siblings lie above each other
                assert top >= drawn[other][1] + drawn[other][3] or drawn[other][1] >= top + height
        if node.parent >= 0:
            parent = drawn[node.parent]
            assert left == pytest.approx(parent[0] + parent[2] + 3, abs=0.2)
            assert parent[1] - 0.2 <= top and top + height <= parent[1] + parent[3] + 0.2


def test_the_page_says_where_branches_begin_and_which_nodes_they_share(tmp_path):
    page = check(page_of(tmp_path, [chat()]))
    texts = [text for _, text in page.text]
    assert "2 paths, depth 1 · tokens 10 · in paths 13, 1.30 times as many" in texts
    assert page.text["span", "shared by 2 paths"] == 1 and page.text["p", "forks into 2 branches: "] == 1
    assert page.text["span", "branch 1 of 2 from "] == page.text["span", "branch 2 of 2 from "] == 1
    titles = [text for tag, text in page.text if tag == "title"]
    assert "node 3: turn 1, 3 tokens after 6, follows node 2, on one path" in titles
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a" and "n" in attributes["href"]]
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert len(links) > 5 and {link[1:] for link in links} - {"overview"} <= ids


def test_a_turn_s_row_says_what_it_read_and_sampled(tmp_path):
    page = check(page_of(tmp_path, [chat()]))
    cells = [text for tag, text in page.text.elements() if tag == "td"]
    for expected in ("0.450", "0.800", "1.000", "length"):  # means of 0.1 times the token ids
        assert expected in cells
    turns = [text for tag, text in page.text if tag == "b" and text.isdecimal()]
    assert turns == ["0", "1", "2"]


def test_what_training_left_out_is_marked_at_its_token(tmp_path):
    trajectory = chat()
    set_training(trajectory, TrainingMarks(2, -0.25, {3: {0: 2.5}}, {3: {0: 0.4, 2: 7.0}}, {2: 1.3}))
    page = check(page_of(tmp_path, [trajectory], {token: f"t{token}" for token in range(11)}.get))
    marked = [
        a
        for tag, a in page.elements
        if tag == "s" and {"clip", "zero"} & set(a["class"].split() if "class" in a else [])
    ]
    told = [each["title"].split("version 4")[1] for each in marked if "title" in each]
    assert told == [
        ", clipped at the ratio 2.5, zeroed by IcePop at k 0.4",
        ", zeroed by IcePop at k 7",
        ", in a turn clipped at the ratio 1.3",
    ]
    assert [each["class"].split()[1:] for each in marked if "title" in each] == [["clip", "zero"], ["zero"], ["clip"]]
    assert page.text["strong", "-0.25"] == 1 and page.text["td", "clipped at 1.3"] == 1
    lines = [a["class"] for tag, a in page.elements if tag == "line" and "class" in a and a["class"] != "grid"]
    assert sorted(lines) == ["clipped"] * 2 + ["zeroed"] * 2
    assert not other_metadata(trajectory)


def test_a_critic_s_verdicts_stand_at_both_samples_of_a_pair(tmp_path):
    shown = [chat(sample) for sample in range(3)]
    set_comparisons(shown[0], VERDICTS)
    page = check(page_of(tmp_path, shown))
    outcomes = [a["class"] for tag, a in page.elements if tag == "span" and a.get("class", "").startswith("tag ")]
    assert [each.split()[1] for each in outcomes if each != "tag finished"] == [
        "won",
        "tied",
        "unknown",
        "lost",
        "tied",
    ]
    assert page.text["pre", "A is shorter"] == page.text["pre", "B is shorter"] == 2
    assert page.text["span", "not asked: the server is gone"] == 2 and page.text["span", "relevance (core)"] == 2
    cells = [
        a["class"] for tag, a in page.elements if tag == "td" and a.get("class") in ("won", "lost", "tied", "none")
    ]
    assert cells == ["none", "won", "tied", "lost", "none", "none", "tied", "none", "none"]
    links = [a["href"] for tag, a in page.elements if a.get("class") == "back" and a["href"] in ("#e0", "#e1", "#e2")]
    assert links == ["#e1", "#e2", "#e0", "#e0"]  # sample 3 is not on the page


@given(choices=st.tuples(*[st.sampled_from(["first", "second", "tie", ""])] * 2))
def test_a_pair_is_won_where_both_orders_name_the_same_answer(choices):
    verdict = PairVerdict(5, choices)
    won, lost = choices == ("first", "second"), choices == ("second", "first")
    assert verdict.outcome == ("won" if won else "lost" if lost else "tied")
    other = verdict.seen_by_other(2)
    assert other.outcome == {"won": "lost", "lost": "won"}.get(verdict.outcome, "tied")
    assert other.seen_by_other(5) == verdict


def test_annotations_survive_the_store():
    trajectory, marks = chat(), TrainingMarks(1, 0.5, {1: {0: 2.125}}, {3: {2: 0.25}}, {1: 1.5})
    set_comparisons(trajectory, VERDICTS)
    set_training(trajectory, marks)
    stored = decode(encode(trajectory))
    assert comparisons(stored) == VERDICTS and training(stored) == marks
    set_comparisons(empty := chat(), [])
    assert not empty.metadata and training(empty) is None and comparisons(empty) == []


@settings(max_examples=8)
@given(
    value=JSON, entries=st.lists(st.dictionaries(st.sampled_from(PairVerdict._fields), JSON, max_size=5), max_size=2)
)
def test_other_metadata_of_the_same_names_is_shown_as_it_is(tmp_path_factory, value, entries):
    trajectory = chat()
    trajectory.metadata = {"comparisons": entries or value, "training": value}
    rest = other_metadata(trajectory)
    assert ("training" in rest) == (training(trajectory) is None)
    assert ("comparisons" in rest) == (not comparisons(trajectory))
    check(page_of(tmp_path_factory.mktemp("page"), [trajectory]))
    marks = {"update": 0, "advantage": 0.0, "clipped": {"99": [[7, 2.0]]}, "zeroed": {"1": [[-5, 0.0], [50, 1.0]]}}
    trajectory.metadata["training"] = marks | {"clipped_turns": [[0, float(np.float32(1.5))]]}
    check(page_of(tmp_path_factory.mktemp("page"), [trajectory]))
