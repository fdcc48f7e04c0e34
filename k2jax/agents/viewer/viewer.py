"""A page that shows an iteration: the run's curves, its groups and rewards, and the tokens of each trajectory.

It is one static file without scripts that loads nothing; all text of trajectories is escaped (``markup.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
import dataclasses
import itertools
from pathlib import Path

from k2jax.agents.viewer.curves import curves
from k2jax.agents.viewer.episode_page import episode
from k2jax.agents.viewer.markup import Html, document, element
from k2jax.agents.viewer.page_style import STYLE, choice_rules
from k2jax.agents.viewer.token_boxes import Decode, legend
from k2jax.agents.viewer.verdict_page import comparison_matrix
from k2jax.files.atomic import write_atomic
from k2jax.report.series import Records
from k2jax.trajectory.annotations import PairVerdict, comparisons
from k2jax.trajectory.types import Trajectory

MAX_TOKENS = 200_000
"""Boxes of a page by default: about 20 MB of HTML."""
_SCORES = 5  # shades of rewards
_ORDERS = {"group": "by group", "reward": "by reward", "length": "by length"}
_HINT = "Choose a trajectory. Point at a token for its id, probability and version."
_COMPARED = "The critic's comparisons: the row's sample against the column's, green where it won"
_ONLY = {"all": "all", "rewarded": "reward > 0", "unrewarded": "reward ≤ 0", "unscored": "not scored"}


@dataclasses.dataclass(frozen=True)
class _Entry:
    """What the lists say of a trajectory."""

    number: int
    task: str
    _: dataclasses.KW_ONLY
    domain: str
    key: tuple[int, int, int]
    status: str
    reward: float | None
    sampled: int
    shade: str = ""
    domain_class: str = ""

    @property
    def label(self) -> str:
        if self.reward is None:
            return "—"
        exact = f"{self.reward:.3g}"
        return exact if len(exact) < 6 or abs(self.reward) >= 10 else f"{self.reward:.2f}"


class _Visible:
    """Which trajectories of a page show their tokens: those before the limit, sub-agents counted like others."""

    def __init__(self, decode: Decode, most: int):
        self._decode, self._most, self._shown = decode, most, 0

    def __call__(self, trajectory: Trajectory) -> Decode | None:
        self._shown += sum(len(node.tokens) for node in trajectory.nodes)
        return self._decode if self._shown <= self._most else None


def write_page(
    path: Path | str,
    trajectories: Iterable[Trajectory],
    decode: Decode,
    *,
    title: str,
    records: Records = (),
    max_tokens: int = MAX_TOKENS,
) -> Path:
    """Writes the page of an iteration's trajectories atomically and returns its path.

    Args:
        path: of the HTML file.
        trajectories: of one iteration, the samples of a prompt together; those of one prompt at a time are in memory
            besides the page.
        decode: gives the text of a token id.
        title: of the page.
        records: of the run's metrics, for curves.
        max_tokens: tokens that the page shows; of later trajectories it shows the rest, and says so.
    """
    entries, episodes, matrices = [], [], []
    visible = _Visible(decode, max_tokens)
    for _, group in itertools.groupby(trajectories, key=lambda trajectory: trajectory.key[:2]):
        members = list(group)
        samples = {trajectory.key[2]: len(entries) + place for place, trajectory in enumerate(members)}
        verdicts = _verdicts(members)
        for trajectory in members:
            number, sample = len(entries), trajectory.key[2]
            entries.append(_entry(number, trajectory))
            episodes.append(episode(trajectory, number, visible, verdicts[sample], samples))
        if matrix := comparison_matrix(samples, verdicts):
            matrices.append(element("figure", element("figcaption", members[0].task), matrix))
    domains = list(dict.fromkeys(entry.domain for entry in entries))
    entries = _with_classes(entries, domains)
    body = element(
        "div",
        _sidebar(title, entries, domains),
        element("main", *episodes, _overview(title, entries, records, matrices), _footer()),
        class_="layout",
    )
    page = document(title, STYLE + choice_rules(len(domains)), *_buttons(len(domains)), body)
    return write_atomic(path, page)


def _entry(number: int, trajectory: Trajectory) -> _Entry:
    reward = None if trajectory.reward is None else trajectory.reward.value
    about = {name: getattr(trajectory, name) for name in ("domain", "key", "status")}
    return _Entry(number, trajectory.task, **about, reward=reward, sampled=trajectory.sampled_tokens)


def _verdicts(members: Sequence[Trajectory]) -> dict[int, list[PairVerdict]]:
    """A critic's verdicts by sample, each pair on both sides."""
    verdicts: dict[int, list[PairVerdict]] = {trajectory.key[2]: [] for trajectory in members}
    for trajectory in members:
        sample = trajectory.key[2]
        for verdict in comparisons(trajectory):
            verdicts[sample].append(verdict)
            if verdict.other in verdicts and verdict.other != sample:
                verdicts[verdict.other].append(verdict.seen_by_other(sample))
    return verdicts


def _buttons(domains: int) -> list[Html]:
    """The radio buttons whose state the lists follow; they precede the lists so that the style sheet can see them."""
    groups = {
        "order": [f"by-{order}" for order in _ORDERS],
        "only": [f"only-{name}" for name in _ONLY],
        "domain": ["domain-all", *(f"domain-{index}" for index in range(domains))],
    }
    return [
        element("input", type="radio", name=group, id=name, class_="radio", checked=True if index == 0 else None)
        for group, names in groups.items()
        for index, name in enumerate(names)
    ]


def _sidebar(title: str, entries: list[_Entry], domains: list[str]) -> Html:
    orders = [element("label", text, for_=f"by-{name}") for name, text in _ORDERS.items()]
    only = [element("label", text, for_=f"only-{name}") for name, text in _ONLY.items()]
    of_domain = [element("label", "every domain", for_="domain-all")]
    of_domain += [element("label", domain, for_=f"domain-{index}") for index, domain in enumerate(domains)]
    top = element(
        "div",
        element("h1", element("a", "Trajectories", href="#overview")),
        element("p", title),
        element("div", *orders, class_="choice"),
        element("div", *only, class_="choice"),
        element("div", *of_domain, class_="choice") if len(domains) > 1 else "",
        class_="top",
    )
    unscored_last = sorted(entries, key=lambda entry: (entry.reward is None, -(entry.reward or 0)))
    longest_first = sorted(entries, key=lambda entry: -entry.sampled)
    lists = [
        element("div", *_grouped(entries), class_="list group"),
        element("div", *[_item(entry) for entry in unscored_last], class_="list reward"),
        element("div", *[_item(entry) for entry in longest_first], class_="list length"),
    ]
    return element("aside", top, element("div", *lists, class_="lists"))


def _groups(entries: list[_Entry]) -> list[tuple[str, list[_Entry]]]:
    """The samples of each prompt under the name of its task, in order of training."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    by_prompt = itertools.groupby(ordered, key=lambda entry: entry.key[:2])
    return [(members[0].task, members) for members in (list(group) for _, group in by_prompt)]


def _grouped(entries: list[_Entry]) -> list[Html]:
    parts = []
    for task, members in _groups(entries):
        mean = element("span", _mean(members))
        parts.append(element("div", element("span", task), mean, class_="heading"))
        parts += [_item(entry) for entry in members]
    return parts


def _item(entry: _Entry) -> Html:
    kind = "unscored" if entry.reward is None else "rewarded" if entry.reward > 0 else "unrewarded"
    status = "" if entry.status == "finished" else f"{entry.status} · "
    return element(
        "a",
        element("span", entry.label, class_=f"score {entry.shade}"),
        element("span", f"{entry.task} #{entry.key[2]}", class_="name"),
        element("small", f"{status}{entry.sampled:,}"),
        href=f"#e{entry.number}",
        class_=f"item {kind} {entry.domain_class}",
    )


def _with_classes(entries: list[_Entry], domains: list[str]) -> list[_Entry]:
    """The entries with the classes of their colors: from the smallest reward, at most 0, to the largest, at least 1."""
    rewards = [entry.reward for entry in entries if entry.reward is not None]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    done = []
    for entry in entries:
        shade = "rx"
        if entry.reward is not None:
            shade = f"r{min(int((entry.reward - low) / (high - low) * _SCORES), _SCORES - 1)}"
        done.append(dataclasses.replace(entry, shade=shade, domain_class=f"d{domains.index(entry.domain)}"))
    return done


def _mean(members: list[_Entry]) -> str:
    rewards = [entry.reward for entry in members if entry.reward is not None]
    return f"{sum(rewards) / len(rewards):.2f}" if rewards else "—"


def _overview(title: str, entries: list[_Entry], records: Records, matrices: list[Html]) -> Html:
    drawn = curves(records)
    rows = []
    for task, members in _groups(entries):
        cells = [
            element(
                "a",
                href=f"#e{entry.number}",
                title=f"sample {entry.key[2]}: reward {entry.label}, {entry.status}, {entry.sampled:,} tokens",
                class_=f"cell {entry.shade}",
            )
            for entry in members
        ]
        parts = element("span", task, class_="name"), element("span", *cells, class_="cells")
        rows.append(element("div", *parts, element("span", _mean(members), class_="number"), class_="row"))
    statuses = Counter(entry.status for entry in entries)
    counts = ", ".join(f"{count:,} {status}" for status, count in statuses.items())
    summary = f"{len(entries):,} trajectories of {len(rows):,} prompts: {counts or 'none'}"
    cards = [
        ("The run", element("div", drawn, class_="curves") if drawn else None),
        ("Rewards of this iteration, a row for each prompt", element("div", *rows, class_="groups")),
        (_COMPARED, element("div", *matrices, class_="matrices") if matrices else None),
    ]
    return element(
        "article",
        element("header", element("h2", title), element("span", summary, class_="soft")),
        *[element("div", element("h3", name), content, class_="card") for name, content in cards if content],
        id="overview",
    )


def _footer() -> Html:
    """What the boxes mean, below whatever the page shows."""
    return element("footer", element("h3", "How to read the tokens"), legend(), element("p", _HINT), class_="soft")
