"""Topics of generated sources: relations between names ``{a}`` and ``{b}`` and numbers ``{n}`` in several wordings.

The first wording is the source's; the others are claims'. ``denied`` says the opposite in the same way.
"""

from __future__ import annotations

from typing import NamedTuple


class Relation(NamedTuple):
    """Something that a source may say.

    Attributes:
        name: of it in its topic.
        slots: its letters.
        wordings: the source's, then those of claims.
        denied: the same of its opposite.
    """

    name: str
    slots: str
    wordings: tuple[str, ...]
    denied: tuple[str, ...]


TOPICS: dict[str, tuple[Relation, ...]] = {
    "firm": (
        Relation("hired", "ab",
                 ("{a} hired {b}.", "{b} was hired by {a}.", "{b} got a job from {a}.", "{a} gave {b} a job."),
                 ("{a} never hired {b}.", "{b} was never hired by {a}.", "{a} did not give {b} a job.")),
        Relation("sued", "ab",
                 ("{a} sued {b} in court.", "{b} was sued by {a}.", "{a} took {b} to court.", "In court {a} sued {b}."),
                 ("{a} did not sue {b} in court.", "{b} was not sued by {a}.", "{a} never took {b} to court.")),
        Relation("staff", "an",
                 ("{a} has a staff of {n}.", "The staff of {a} numbers {n}.", "{n} people are on the staff of {a}."),
                 ("{a} does not have a staff of {n}.", "The staff of {a} does not number {n}.",
                  "No {n} people are on the staff of {a}.")),
        Relation("profit", "an",
                 ("{a} made a profit of {n} crowns.", "The profit of {a} was {n} crowns.",
                  "{n} crowns were the profit of {a}."),
                 ("{a} did not make a profit of {n} crowns.", "The profit of {a} was not {n} crowns.",
                  "{a} never made a profit of {n} crowns.")),
        Relation("advises", "ab",
                 ("{a} advises {b} on contracts.", "On contracts {b} is advised by {a}.", "{a} gives {b} advice."),
                 ("{a} does not advise {b} on contracts.", "On contracts {b} is not advised by {a}.",
                  "{a} gives {b} no advice on contracts.")),
    ),
    "places": (
        Relation("north", "ab",
                 ("{a} lies north of {b}.", "North of {b} lies {a}.", "Going north from {b} one reaches {a}."),
                 ("{a} does not lie north of {b}.", "{a} is not north of {b}.", "North of {b} does not lie {a}.")),
        Relation("people", "an",
                 ("{a} has {n} inhabitants.", "{n} inhabitants live in {a}.", "The inhabitants of {a} number {n}."),
                 ("{a} does not have {n} inhabitants.", "No {n} inhabitants live in {a}.",
                  "The inhabitants of {a} do not number {n}.")),
        Relation("height", "an",
                 ("{a} lies {n} metres above the sea.", "The height of {a} above the sea is {n} metres.",
                  "{a} is {n} metres above sea level."),
                 ("{a} does not lie {n} metres above the sea.", "The height of {a} is not {n} metres.",
                  "{a} is not {n} metres above sea level.")),
        Relation("supplies", "ab",
                 ("{a} supplies {b} with water.", "{b} is supplied with water by {a}.",
                  "{b} gets its water from {a}."),
                 ("{a} does not supply {b} with water.", "{b} is not supplied with water by {a}.",
                  "{b} does not get its water from {a}.")),
        Relation("older", "ab",
                 ("{a} is older than {b}.", "{a} was there before {b}.", "{a} has the older history than {b}."),
                 ("{a} is not older than {b}.", "{a} was not there before {b}.", "{a} is no older place than {b}.")),
    ),
    "sport": (
        Relation("beat", "ab",
                 ("{a} beat {b} in the final.", "{b} was beaten by {a} in the final.", "In the final {a} beat {b}."),
                 ("{a} did not beat {b} in the final.", "{b} was not beaten by {a} in the final.",
                  "In the final {a} did not beat {b}.")),
        Relation("trains", "ab",
                 ("{a} trains {b}.", "{b} is trained by {a}.", "{b} trains under {a}.", "The trainer of {b} is {a}."),
                 ("{a} does not train {b}.", "{b} is not trained by {a}.", "The trainer of {b} is not {a}.")),
        Relation("points", "an",
                 ("{a} scored {n} points.", "{n} points were scored by {a}.", "The score of {a} was {n} points."),
                 ("{a} did not score {n} points.", "{n} points were not scored by {a}.",
                  "The score of {a} was not {n} points.")),
        Relation("fans", "an",
                 ("{a} was cheered by {n} fans.", "{n} fans cheered {a}.", "As many as {n} fans came to cheer {a}."),
                 ("{a} was not cheered by {n} fans.", "{n} fans did not cheer {a}.", "No {n} fans came to cheer {a}.")),
    ),
    "science": (
        Relation("taught", "ab",
                 ("{a} taught {b} chemistry.", "{b} was taught chemistry by {a}.", "{b} learned chemistry from {a}."),
                 ("{a} never taught {b} chemistry.", "{b} was not taught chemistry by {a}.",
                  "{b} did not learn chemistry from {a}.")),
        Relation("cites", "ab",
                 ("{a} cites {b} in a paper.", "A paper of {a} cites {b}.", "{b} is cited in a paper by {a}."),
                 ("{a} does not cite {b} in a paper.", "No paper of {a} cites {b}.",
                  "{b} is not cited in a paper by {a}.")),
        Relation("papers", "an",
                 ("{a} has published {n} papers.", "{n} papers have been published by {a}.",
                  "The papers of {a} number {n}."),
                 ("{a} has not published {n} papers.", "{n} papers have not been published by {a}.",
                  "The papers of {a} do not number {n}.")),
        Relation("grant", "an",
                 ("{a} received a grant of {n} crowns.", "A grant of {n} crowns went to {a}.",
                  "{n} crowns were granted to {a}."),
                 ("{a} did not receive a grant of {n} crowns.", "No grant of {n} crowns went to {a}.",
                  "{n} crowns were not granted to {a}.")),
    ),
}  # fmt: skip
"""Of training."""
HELD_OUT: dict[str, tuple[Relation, ...]] = {
    "expedition": (
        Relation("rescued", "ab",
                 ("During the storm {a} rescued {b}.", "{b} was rescued by {a} during the storm.",
                  "It was {a} who rescued {b} from the storm.", "{b} owed the rescue from the storm to {a}."),
                 ("During the storm {a} did not rescue {b}.", "{b} was not rescued by {a}.",
                  "It was not {a} who rescued {b}.")),
        Relation("carried", "an",
                 ("{a} carried {n} kilos of supplies.", "Supplies of {n} kilos were carried by {a}.",
                  "On the back of {a} were supplies of {n} kilos."),
                 ("{a} never carried {n} kilos of supplies.", "Supplies of {n} kilos were not carried by {a}.",
                  "On the back of {a} there were never {n} kilos.")),
        Relation("followed", "ab",
                 ("{a} followed {b} across the glacier.", "Across the glacier {b} was followed by {a}.",
                  "{b} crossed the glacier, followed by {a}."),
                 ("{a} did not follow {b} across the glacier.", "Across the glacier {b} was not followed by {a}.",
                  "{b} crossed the glacier and was not followed by {a}.")),
        Relation("climbed", "an",
                 ("{a} climbed a peak of {n} metres.", "A peak of {n} metres was climbed by {a}.",
                  "The peak that {a} climbed has {n} metres."),
                 ("{a} never climbed a peak of {n} metres.", "A peak of {n} metres was not climbed by {a}.",
                  "The peak that {a} climbed does not have {n} metres.")),
    ),
    "village": (
        Relation("owes", "ab",
                 ("{a} borrowed money from {b}.", "{b} lent money to {a}.", "It was {b} who lent {a} money."),
                 ("{a} never borrowed money from {b}.", "{b} lent no money to {a}.",
                  "{a} did not borrow money from {b}.")),
        Relation("married", "ab",
                 ("{a} invited {b} to the wedding.", "{b} was invited to the wedding by {a}.",
                  "An invitation to the wedding went from {a} to {b}."),
                 ("{a} did not invite {b} to the wedding.", "{b} was not invited to the wedding by {a}.",
                  "No invitation to the wedding went from {a} to {b}.")),
        Relation("sheep", "an",
                 ("{a} owns {n} sheep.", "{n} sheep belong to {a}.", "The flock of {a} counts {n} sheep."),
                 ("{a} does not own {n} sheep.", "{n} sheep do not belong to {a}.",
                  "The flock of {a} does not count {n} sheep.")),
        Relation("bread", "an",
                 ("{a} bakes {n} loaves a day.", "{n} loaves a day are baked by {a}.",
                  "Every day {a} puts {n} loaves into the oven."),
                 ("{a} does not bake {n} loaves a day.", "{n} loaves a day are not baked by {a}.",
                  "Every day {a} bakes bread, but never {n} loaves.")),
    ),
}  # fmt: skip
"""Topics, wordings and words that no training has."""
