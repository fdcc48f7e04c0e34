"""One trajectory as HTML: its reward, its tree as a picture, its turns, and the tokens of each node as boxes.

Sub-agents stand below the conversation that spawned them, in the same form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from k2jax.agents.egress.egress_log import EGRESS
from k2jax.agents.viewer.egress_table import egress_table
from k2jax.agents.viewer.markup import Html, element
from k2jax.agents.viewer.swarm_picture import instruction
from k2jax.agents.viewer.swarm_schedule import SwarmAgent, swarm_schedule
from k2jax.agents.viewer.swarm_section import MOST_AGENTS, swarm_card
from k2jax.agents.viewer.token_boxes import Decode, NodeMarks, tokens
from k2jax.agents.viewer.tree_picture import TreeOutline, outline_of, tree_picture
from k2jax.agents.viewer.turn_table import span, turn_table
from k2jax.agents.viewer.verdict_page import comparison_table, details, verdict
from k2jax.trajectory.annotations import PairVerdict, TrainingMarks, other_metadata, training
from k2jax.trajectory.consistency import verify
from k2jax.trajectory.links import spawning_node
from k2jax.trajectory.types import NO_TURN, NO_VERSION, ROOT, Trajectory

_MAX_INDENT = 6
_MOST_WORDS = 300  # of an instruction whose conversation is left out


def episode(
    trajectory: Trajectory,
    number: int,
    visible: Callable[[Trajectory], Decode | None],
    verdicts: Sequence[PairVerdict] = (),
    samples: Mapping[int, int] | None = None,
) -> Html:
    """A trajectory as an element.

    Args:
        trajectory: to show.
        number: by which the page's links name it.
        visible: gives the function that makes text of tokens, or None for a trajectory whose tokens are left out. It
            is asked once for the trajectory, then for those of its sub-agents.
        verdicts: of a critic, with this sample as the own one.
        samples: numbers by which the page's links name the samples of its prompt.
    """
    step, prompt, sample = trajectory.key
    marks = training(trajectory)
    heading = element(
        "header",
        element("h2", trajectory.task),
        element("span", trajectory.domain, class_="tag"),
        element("span", trajectory.status, class_=f"tag {trajectory.status}"),
        element("span", f"iteration {step} · prompt {prompt} · sample {sample}", class_="soft"),
        element("a", "overview", href="#overview", class_="back"),
    )
    problems = [element("p", f"inconsistent: {line}", class_="alert") for line in verify(trajectory)]
    if trajectory.error:
        problems.append(element("p", trajectory.error, class_="alert"))
    address = {other: f"#e{place}" for other, place in (samples or {}).items()}.get
    body = [heading, *problems, verdict(trajectory, marks), comparison_table(verdicts, address)]
    agents = swarm_schedule(trajectory)
    places = [f"e{number}", *(f"e{number}a{index}" for index in range(1, len(agents)))]
    if len(agents) > 1:
        body.append(swarm_card(agents, lambda index: f"#{places[index]}"))
    body += _conversation(agents, 0, places, visible(trajectory))
    body += [element("h3", "Conversations of the sub-agents")] if len(agents) > 1 else []
    for index in range(1, min(len(agents), MOST_AGENTS)):
        body.append(_sub_agent(agents, index, places, visible))
    return element("article", *body, id=places[0], class_="episode")


def _conversation(
    agents: Sequence[SwarmAgent], index: int, places: Sequence[str], decode: Decode | None
) -> Iterator[Html]:
    """The figures of an agent's trajectory, its tokens where they are shown, and its metadata."""
    trajectory = agents[index].trajectory
    marks = training(trajectory)
    yield _figures(trajectory, marks)
    if decode is None:
        text = "The tokens are left out of this page: raise --tokens, or name its prompt."
        yield element("p", text, class_="soft")
    elif trajectory.nodes:
        spawned = defaultdict(list)
        for child in agents[index].children:
            if child < MOST_AGENTS:
                node = spawning_node(trajectory, agents[child].link)
                spawned[node].append(element("a", agents[child].name, href=f"#{places[child]}"))
        yield from _tree(trajectory, places[index], decode, marks, spawned)
    metadata = other_metadata(trajectory)
    if requests := egress_table(trajectory):
        yield requests
        del metadata[EGRESS]
    if metadata:
        yield details("metadata", metadata)


def _sub_agent(
    agents: Sequence[SwarmAgent], index: int, places: Sequence[str], visible: Callable[[Trajectory], Decode | None]
) -> Html:
    """The conversation of a sub-agent behind its name; a link to it opens it."""
    agent, parent = agents[index], agents[agents[index].parent]
    status = element("span", agent.status or "unknown", class_=f"tag {agent.status}")
    facts = f" role {agent.role} · {agent.steps:,} steps · spawned by {parent.name}"
    summary = element("summary", element("b", agent.name), status, facts)
    back = element("a", f"to {parent.name}", href=f"#{places[agent.parent]}", class_="back")
    if agent.trajectory is None:
        body = [element("p", "Its trajectory is not stored with the episode.", class_="soft")]
    else:
        alert = element("p", agent.trajectory.error, class_="alert") if agent.trajectory.error else ""
        decode = visible(agent.trajectory)
        words = "" if decode is not None else element("p", instruction(agent.trajectory)[:_MOST_WORDS], class_="soft")
        body = [alert, words, *_conversation(agents, index, places, decode)]
    shown = element("div", back, *body, id=places[index])
    return element("details", summary, shown, class_=f"card agent i{min(agent.depth - 1, _MAX_INDENT)}")


def _figures(trajectory: Trajectory, marks: TrainingMarks | None) -> Html:
    sampled = [node for node in trajectory.nodes if (node.versions != NO_VERSION).any()]
    logprobs = np.concatenate([np.zeros(0), *(node.logprobs[node.versions != NO_VERSION] for node in sampled)])
    figures = {
        "tokens sampled": f"{len(logprobs):,}",
        "tokens in all": f"{sum(len(node.tokens) for node in trajectory.nodes):,}",
        "calls of the model": f"{len({node.turn for node in sampled}):,}",
        "leaves": f"{len(trajectory.leaves()):,}",
    }
    if sampled:
        figures |= {
            "mean -log p [nats]": f"{-logprobs.mean():.3f}",
            "versions": span(np.concatenate([node.versions[node.versions != NO_VERSION] for node in sampled])),
            "temperature": ", ".join(dict.fromkeys(f"{node.temperature:g}" for node in sampled)),
        }
    if marks is not None:
        clipped, zeroed = (sum(map(len, of_nodes.values())) for of_nodes in (marks.clipped, marks.zeroed))
        figures |= {"trained in update": f"{marks.update}", "tokens clipped": f"{clipped:,}"}
        figures |= {"turns clipped": f"{len(marks.clipped_turns):,}"} if marks.clipped_turns else {}
        figures |= {"zeroed by IcePop": f"{zeroed:,}"}
    items = [element("div", element("dt", name), element("dd", value)) for name, value in figures.items()]
    return element("dl", *items, class_="figures")


def _tree(
    trajectory: Trajectory,
    place: str,
    decode: Decode,
    marks: TrainingMarks | None,
    spawned: Mapping[int | None, list[Html]],
) -> list[Html]:
    """The picture of the tree, the turns, and the nodes depth-first; branches stand indented below their fork.

    ``spawned`` holds links to the sub-agents by the node whose answer spawned them.
    """
    shape, of_nodes = outline_of(trajectory), node_marks(trajectory, marks)
    link = f"#{place}n{{}}".format
    parts = []
    if len(trajectory.nodes) > 1:
        picture = tree_picture(trajectory, shape, link, of_nodes)
        parts.append(element("div", _tree_heading(trajectory, shape), picture, class_="card"))
        parts.append(turn_table(trajectory, shape, link, of_nodes))
    children: dict[int, list[int]] = {}
    for index in shape.order:
        children.setdefault(trajectory.nodes[index].parent, []).append(index)
    for index in shape.order:
        cards = _Card(trajectory, index, shape, children, link)
        parts.append(cards.html(decode, of_nodes.get(index, NodeMarks()), spawned.get(index, [])))
    return parts


def node_marks(trajectory: Trajectory, marks: TrainingMarks | None) -> dict[int, NodeMarks]:
    """What training left out, by node; empty where nothing was recorded."""
    if marks is None:
        return {}
    return {
        index: NodeMarks(marks.clipped.get(index, {}), marks.zeroed.get(index, {}), marks.clipped_turns.get(node.turn))
        for index, node in enumerate(trajectory.nodes)
        if node.turn != NO_TURN
    }


def _tree_heading(trajectory: Trajectory, shape: TreeOutline) -> Html:
    stored = sum(len(node.tokens) for node in trajectory.nodes)
    in_paths = sum(shape.depth[leaf] + len(trajectory.nodes[leaf].tokens) for leaf in trajectory.leaves())
    facts = "one path" if shape.path_count == 1 else f"{shape.path_count:,} paths, depth {max(shape.forks):,}"
    saved = "" if shape.path_count == 1 else f" · in paths {in_paths:,}, {in_paths / max(stored, 1):.2f} times as many"
    words = f"{facts} · tokens {stored:,}{saved}"
    hint = "width: tokens · height: paths that share them"
    return element("h3", "Tree ", element("span", words, class_="facts"), element("span", hint, class_="hint"))


class _Card:
    """A node with its place in the tree."""

    def __init__(self, trajectory: Trajectory, index: int, shape: TreeOutline, children: dict[int, list[int]], link):
        self._node, self._index, self._shape = trajectory.nodes[index], index, shape
        self._siblings = children[self._node.parent]
        self._children, self._link = children.get(index, []), link

    def html(self, decode: Decode, marks: NodeMarks, spawned: Sequence[Html]) -> Html:
        node, indent = self._node, min(self._shape.forks[self._index], _MAX_INDENT)
        kind = "sampled" if node.turn != NO_TURN else "observed"
        message = [] if node.message is None else [details("message", node.message)]
        boxes = tokens(node, decode, marks)
        started = [part for index, each in enumerate(spawned) for part in (", " if index else " ", each)]
        links = [element("p", "spawns", *started, class_="fork")] if started else []
        parts = [self._title(marks), boxes, *message, *links, *self._fork()]
        return element("section", *parts, class_=f"node {kind} i{indent}", id=self._link(self._index)[1:])

    def _title(self, marks: NodeMarks) -> Html:
        node, is_sampled = self._node, self._node.turn != NO_TURN
        role = node.message.get("role") if isinstance(node.message, Mapping) else None
        facts = [f"turn {node.turn}" if is_sampled else "observed", f"{len(node.tokens):,} tokens"]
        if is_sampled:
            facts += [f"version {span(node.versions[node.versions != NO_VERSION])}"]
            facts += [f"temperature {node.temperature:g}", node.finish or "no finish reason"]
        if is_sampled and not node.mask.all():
            facts.append(f"{int((~node.mask).sum()):,} not trained")
        facts += [f"{len(marks.clipped):,} clipped"] if marks.clipped else []
        facts += [f"{len(marks.zeroed):,} zeroed"] if marks.zeroed else []
        return element(
            "h3",
            f"{self._index} ",
            element("b", role or ("model" if is_sampled else "tokens")),
            element("span", " · ".join(facts)),
            *self._place(),
        )

    def _place(self) -> list[Html]:
        """Which branch begins here, and how many paths share the node."""
        parts, parent = [], self._node.parent
        if len(self._siblings) > 1:
            branch = f"branch {self._siblings.index(self._index) + 1} of {len(self._siblings)}"
            where = ["from the root"] if parent == ROOT else ["from ", self._to(parent)]
            parts.append(element("span", f"{branch} ", *where, class_="branch"))
        elif parent != self._index - 1:
            parts.append(element("span", "follows ", self._to(parent), class_="branch"))
        if (paths := self._shape.paths[self._index]) > 1:
            parts.append(element("span", f"shared by {paths:,} paths", class_="shared"))
        return parts

    def _fork(self) -> list[Html]:
        """Where the branches below continue."""
        if len(self._children) < 2:
            return []
        links = [part for child in self._children for part in (" ", self._to(child))]
        return [element("p", f"forks into {len(self._children):,} branches:", *links, class_="fork")]

    def _to(self, index: int) -> Html:
        return element("a", f"node {index}", href=self._link(index))
