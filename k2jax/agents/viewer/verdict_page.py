"""What an episode was worth as HTML: its reward, its verdict, and what a critic said of it beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import json
from typing import Any

from k2jax.agents.viewer.markup import Html, element, joined
from k2jax.trajectory.annotations import PairVerdict, TrainingMarks, reward_parts
from k2jax.trajectory.types import Trajectory

_NAMED = {"tie": "tie", "": "no verdict"}
_NOT_ASKED = "the judge was not asked; equal answers tie, and one that was cut or speaks to the judge loses"
_MEANING = "An answer wins where the judge names it in both orders; anything else is a tie."


def verdict(trajectory: Trajectory, marks: TrainingMarks | None) -> Html:
    """The reward, its parts, the verifier's reasons, and the advantage that training made of it."""
    reward = trajectory.reward
    if reward is None:
        return element("div", element("strong", "not scored"), class_="verdict")
    rows = [(name, f"{value + 0.0:g}") for name, value in reward.parts.items()]
    terms = reward_parts(trajectory)
    rows += [(each.name, f"{each.weight:g} x {each.value + 0.0:.4g}") for each in terms]
    rows += [("sum", f"{sum(each.weight * each.value for each in terms) + 0.0:.4g}")] if terms else []
    parts = [element("tr", element("th", name), element("td", text, class_="number")) for name, text in rows]
    return element(
        "div",
        element("div", element("small", "reward"), element("strong", f"{reward.value + 0.0:.4g}"), class_="reward"),
        element("div", element("small", "advantage"), element("strong", f"{marks.advantage:+.3g}"), class_="reward")
        if marks is not None
        else "",
        element("table", *parts) if parts else "",
        details("verdict", reward.info, is_open=True) if reward.info else "",
        class_="verdict",
    )


def details(title: str, values: Mapping[str, Any], is_open: bool | None = None) -> Html:
    """JSON values behind a title that opens them."""
    text = json.dumps(values, indent=2, ensure_ascii=False, default=str)
    return element("details", element("summary", title), element("pre", text), open=is_open)


def comparison_table(verdicts: Sequence[PairVerdict], address: Callable[[int], str | None]) -> Html:
    """A critic's verdicts on a sample beside the others of its prompt; empty without any.

    Args:
        verdicts: with this sample as the own one.
        address: of another sample on the page; None where it is not there.
    """
    if not verdicts:
        return joined(())
    head = [element("th", name) for name in ("against", "outcome", "shown first", "shown second")]
    rows = [element("tr", *head)]
    for each in sorted(verdicts, key=lambda each: each.other):
        where = address(each.other)
        name = f"sample {each.other}"
        rows.append(
            element(
                "tr",
                element("td", element("a", name, href=where, class_="back") if where else name),
                element("td", element("span", each.outcome, class_=f"tag {each.outcome}")),
                *[element("td", _order(each, place)) for place in range(2)],
            )
        )
    rubrics = list(dict.fromkeys(name for each in verdicts for name in each.rubrics))
    chips = [element("span", name, class_="tag") for name in rubrics]
    return element(
        "div",
        element("h3", "The critic's comparisons"),
        element("p", _MEANING, class_="soft"),
        element("p", "by ", *chips, class_="chips") if chips else "",
        element("table", *rows, class_="comparisons"),
        class_="card",
    )


def _order(verdict: PairVerdict, place: int) -> Html:
    """What the judge said with this sample in the first or in the second place."""
    if verdict.error:
        return element("span", f"not asked: {verdict.error}", class_="soft")
    choice, reply = verdict.choices[place], verdict.replies[place]
    own = ("first", "second")[place]
    text = _NAMED.get(choice) or ("this one" if choice == own else "the other")
    if not reply:
        return element("span", text)
    return element("details", element("summary", text), element("pre", reply))


def comparison_matrix(samples: Mapping[int, int], verdicts: Mapping[int, Sequence[PairVerdict]]) -> Html:
    """The outcomes of a prompt's samples, row against column; empty where a critic compared none.

    Args:
        samples: numbers of the page's trajectories by sample.
        verdicts: by sample, with that sample as the own one.
    """
    if not any(verdicts.values()):
        return joined(())
    rows = []
    for sample, number in samples.items():
        outcomes = {each.other: each for each in verdicts.get(sample, ())}
        cells = [_cell(sample, other, outcomes.get(other)) for other in samples]
        rows.append(element("tr", element("th", element("a", f"{sample}", href=f"#e{number}")), *cells))
    return element("table", *rows, class_="matrix")


def _cell(sample: int, other: int, verdict: PairVerdict | None) -> Html:
    if verdict is None:
        about = None if sample == other else f"sample {sample} against {other}: {_NOT_ASKED}"
        return element("td", class_="none", title=about)
    first, second = (choice or "nothing" for choice in verdict.choices)
    about = f"sample {sample} against {other}: {verdict.outcome} (shown first: {first}, shown second: {second})"
    return element("td", class_=verdict.outcome, title=about)
