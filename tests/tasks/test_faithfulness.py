"""The judge of faithfulness: what it learns on pairs it has not seen, its measures, and the rewards that it gives."""

import json
import math
import random
import re
import time

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from k2jax.agents.dataset import load_tasks
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.faithfulness import judge_training
from k2jax.tasks.faithfulness.dataset import oracle
from k2jax.tasks.faithfulness.evidence import FEATURES, claims_of, evidence, sentences_evidence
from k2jax.tasks.faithfulness.generated_pairs import KINDS, ClaimDrawer, ClaimPair
from k2jax.tasks.faithfulness.judge_measures import area_under_curve, calibration_bins, expected_calibration_error
from k2jax.tasks.faithfulness.judge_training import generated_splits, measured, read_splits, trained
from k2jax.tasks.faithfulness.sentence_judge import FILE, fitted, judge_inputs, load_judge
from k2jax.tasks.faithfulness.topics import HELD_OUT, TOPICS
from k2jax.tasks.faithfulness.verifier import LONGEST, faithfulness
from k2jax.trajectory import Reward


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    splits = generated_splits(1200, 0)
    judge = trained(splits.train)
    judge.save(folder)
    return folder, judge, splits


def test_it_tells_supported_claims_of_topics_it_has_not_seen(made):
    metrics = measured(made[1], made[2].held_out)
    assert metrics["area_under_curve"] >= 0.9 and metrics["expected_calibration_error"] <= 0.12
    assert set(metrics["by_kind"]) == set(KINDS) and min(metrics["by_kind"].values()) > 0.6
    assert sum(one["count"] for one in metrics["bins"]) == metrics["pairs"] == 600


def test_what_is_held_out_is_in_no_training(made):
    train, held_out = made[2]
    words = [
        {word for relation in topic for wording in relation.wordings for word in wording.split()}
        for topics in (TOPICS, HELD_OUT)
        for topic in [sum(topics.values(), ())]
    ]
    assert not {wording for topic in HELD_OUT.values() for one in topic for wording in one.wordings} & {
        wording for topic in TOPICS.values() for one in topic for wording in one.wordings
    }
    assert len(words[1] - words[0]) > 0.5 * len(words[1])
    names = [
        {name for pair in part[:200] for one in sentences_evidence(pair.source) for name in one.anchors - one.numbers}
        for part in made[2]
    ]
    assert names[0] and names[1] and not names[0] & names[1]
    assert not {pair.topic for pair in train} & {pair.topic for pair in held_out}


def test_generated_labels_are_right_where_a_text_says_so(made):
    for pair in made[2].train:
        said = set().union(*(one.anchors for one in sentences_evidence(pair.source)))
        claimed = {
            word
            for _, clauses in claims_of(pair.claim)
            for one in clauses
            for word in one.anchors
            if word.lower() not in pair.source.split() and word not in ("Supplies", "Going", "North")
        }
        if pair.supported:
            assert claimed <= said, pair
        elif pair.kind in ("name", "number"):
            assert claimed - said, pair
        elif pair.kind in ("swapped", "relation", "mixed", "negated"):
            assert claimed <= said, pair
    assert 0.45 < np.mean([pair.supported for pair in made[2].train]) < 0.55


def said_by(relations, text, places):
    """What a sentence says, read from the wordings: relation, values, and whether it is denied."""
    found = set()
    for relation in relations:
        for denied, wordings in ((False, relation.wordings), (True, relation.denied)):
            for wording in wordings[places]:
                pattern = re.sub(r"\\{(\w)\\}", r"(?P<\1>\\w+)", re.escape(wording))
                if match := re.fullmatch(pattern, text):
                    found.add((relation.name, tuple(sorted(match.groupdict().items())), denied))
    return found


def test_generated_labels_are_those_of_a_reader_of_the_wordings(made):
    read = 0
    for pair in made[2].train[:400]:
        relations = TOPICS[pair.topic]
        stated = [said_by(relations, f"{one}.", slice(0, 1)) for one in pair.source.rstrip(".").split(". ")]
        assert all(len(one) == 1 for one in stated)
        claimed = said_by(relations, pair.claim, slice(1, None))
        if len(claimed) == 1:
            assert (claimed <= set().union(*stated)) == pair.supported, pair
            read += 1
    assert read > 200


def test_the_area_is_how_often_a_right_claim_has_the_higher_score():
    rng = np.random.default_rng(0)
    scores, labels = np.round(rng.normal(size=300), 1), rng.random(300) < 0.3
    right, wrong = scores[labels], scores[~labels]
    counted = np.mean([(a > b) + 0.5 * (a == b) for a in right for b in wrong])
    statistic = scipy.stats.mannwhitneyu(right, wrong).statistic / (len(right) * len(wrong))
    assert area_under_curve(scores, labels) == pytest.approx(counted, abs=1e-12) == pytest.approx(statistic, abs=1e-12)


def test_the_calibration_error_is_zero_for_shares_and_their_distance_otherwise():
    said, labels = np.array([0.25] * 4 + [0.75] * 4), np.array([1, 0, 0, 0, 1, 1, 1, 0], bool)
    assert expected_calibration_error(calibration_bins(said, labels)) == 0
    assert expected_calibration_error(calibration_bins(np.clip(said + 0.1, 0, 1), labels)) == pytest.approx(0.1)
    assert expected_calibration_error(calibration_bins(np.ones(4), np.ones(4, bool))) == 0
    assert expected_calibration_error(calibration_bins(np.array([0.2, 0.8]), np.array([True, False]))) == 0.8


def test_weights_have_the_greatest_penalised_likelihood():
    rng = np.random.default_rng(0)
    features, labels = rng.random((200, len(FEATURES))), rng.random(200) < 0.5
    inputs = judge_inputs(features)

    def loss(weights):
        return np.logaddexp(0, inputs @ weights * np.where(labels, -1, 1)).sum() + 0.5 * (weights**2).sum()

    found = scipy.optimize.minimize(loss, np.zeros(inputs.shape[1]), jac=lambda weights: inputs.T @ (
        1 / (1 + np.exp(-inputs @ weights)) - labels) + weights, tol=1e-10)  # fmt: skip
    np.testing.assert_allclose(fitted(features, labels).weights, found.x, atol=1e-5)


SOURCE = "Ada Lindgren hired Hugo Salas. Ada Lindgren has a staff of 40. Ewa Nowak never sued Pavel Orlov in court."


@pytest.mark.parametrize(
    ("claim", "name", "value"),
    [
        ("Hugo Salas was hired by Ada Lindgren.", "roles agree", 1),
        ("Ada Lindgren was hired by Hugo Salas.", "roles differ", 1),
        ("Ewa Nowak sued Pavel Orlov.", "denial differs", 1),
        ("Ewa Nowak didn't sue Pavel Orlov.", "denial differs", 0),
        ("The staff of Ada Lindgren is 41.", "numbers in source", 0),
        ("Hugo Salas has a staff of 40.", "names in source", 1),
        ("She left.", "nothing named", 1),
    ],
)
def test_evidence_has_its_meaning(claim, name, value):
    [(_, [one])] = (
        claims_of(claim + " It is so that way.")[:1] if name != "nothing named" else [("", sentences_evidence(claim))]
    )
    features = evidence(sentences_evidence(SOURCE), one)
    assert features[FEATURES.index(name)] == pytest.approx(value) and np.isfinite(features).all()


def test_a_sentence_is_as_good_as_its_worst_clause(made):
    judge = made[1]
    whole, good, bad = judge.verdicts(SOURCE, "Ada Lindgren hired Hugo Salas, and Ewa Nowak has a staff of 99. "
                                      "Ada Lindgren hired Hugo Salas. Ewa Nowak has a staff of 99.")  # fmt: skip
    assert whole.probability == pytest.approx(bad.probability, abs=0.05) and good.probability > 0.5 > bad.probability


def task(folder, **metadata):
    fields = {"context": SOURCE, "judge": str(folder), "expected": ["Hugo Salas"], **metadata}
    return Task("1", "faithfulness", ({"role": "user", "content": "?"},), "faithfulness", metadata=fields)


def test_an_answer_earns_its_share_of_supported_sentences(made):
    good, bad = "Ada Lindgren hired Hugo Salas.", "Pavel Orlov has a staff of 77."
    reward = faithfulness(task(made[0]), f"Gladly! {good} {bad} Do you need more?")
    assert reward.value == 0.5 and reward.info["unsupported"] == [bad]
    assert faithfulness(task(made[0]), f"{good} {good} {good} {bad}").value == 0.5
    assert faithfulness(task(made[0]), good) == Reward(1.0, {"faithful": 1.0, "complete": 1.0}, {"unsupported": []})
    assert faithfulness(task(made[0]), "Ada Lindgren has a staff of 40.").value == 0.0  # true, and no answer
    assert faithfulness(task(made[0], expected=[]), "Ada Lindgren has a staff of 40.").value == 1.0
    long = faithfulness(task(made[0]), f"{good} " * (LONGEST // len(good)))
    assert long.value == 0.0 and long.info["too_long"] > LONGEST
    for nothing in ("", "Well.", "?", "I do."):
        assert faithfulness(task(made[0], expected=[]), nothing).value == 0.0


@pytest.mark.parametrize(
    "text", ["(" * LONGEST, "A b. " * 3990, "\ud800 x", "1 = " * 4000, "Ada, and " * 2000, "A" * (LONGEST + 1)]
)
def test_whatever_an_agent_writes_is_judged_soon(made, text):
    began = time.process_time()
    reward = faithfulness(task(made[0]), text)
    assert math.isfinite(reward.value) and time.process_time() - began < 2


def test_tasks_are_solved_by_their_oracle(made, tmp_path):
    tasks = load_tasks("faithfulness", (f"judge={made[0]}", "count=20"), "train")
    assert {faithfulness(one, oracle(one, ())["content"]).value for one in tasks} == {1.0}
    held_out = load_tasks("faithfulness", (f"judge={made[0]}", "count=20"), "test")
    assert not {one.domain for one in tasks} & {one.domain for one in held_out}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"context": SOURCE, "question": "Who was hired?", "expected": ["Hugo"]}) + "\n")
    [read] = load_tasks("faithfulness", (f"judge={made[0]}", f"path={path}"), "all")
    assert read.metadata["expected"] == ["Hugo"] and SOURCE in read.instruction[0]["content"]
    path.write_text('{"context": "a", "question": 3}\n')
    with pytest.raises(UserError, match=r"record 1 of .* needs the texts"):
        load_tasks("faithfulness", (f"judge={made[0]}", f"path={path}"), "all")


@pytest.mark.parametrize(
    "change", [{"version": 0}, {"weights": [1]}, {"features": []}, {"slope": "a"}, {"offset": None}]
)
def test_what_is_no_judge_is_refused_in_one_line(made, tmp_path, change):
    fields = json.loads((made[0] / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**fields, **change}))
    with pytest.raises(UserError, match=r"judge.*python -m k2jax\.env\.faithfulness") as error:
        load_judge(str(tmp_path))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="cannot read the judge"):
        load_judge(str(tmp_path / "none"))


def test_the_command_learns_from_pairs_of_a_file(tmp_path, capsys):
    drawn = ClaimDrawer(5).pairs(150)
    pairs = [*drawn, *(pair._replace(claim=f"Indeed, {pair.claim}") for pair in drawn)]
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        "".join(json.dumps({"source": p.source, "claim": p.claim, "supported": p.supported}) + "\n" for p in pairs)
    )
    splits = read_splits(str(path))
    assert sum(map(len, splits)) == 300 and not {p.source for p in splits.train} & {p.source for p in splits.held_out}
    from absl import flags

    values = flags.FlagValues()
    judge_training.define(values)
    values(["command", f"--workdir={tmp_path / 'judge'}", f"--pairs={path}"])
    judge_training.main(values)
    assert "area under the ROC curve 0." in capsys.readouterr().out
    assert {one.name for one in (tmp_path / "judge").iterdir()} == {"judge.json", "metrics.json", "calibration.png"}
    path.write_text('{"source": "a", "claim": 3}\n')
    with pytest.raises(UserError, match=r"line 1.*a pair has"):
        read_splits(str(path))
    path.write_text(
        "".join(json.dumps({"source": p.source, "claim": p.claim, "supported": True}) + "\n" for p in pairs)
    )
    with pytest.raises(UserError, match="half of them supported"):
        read_splits(str(path))


def test_drawn_pairs_depend_on_the_seed_alone():
    assert ClaimDrawer(1).pairs(5) == ClaimDrawer(1).pairs(5) != ClaimDrawer(2).pairs(5)
    assert isinstance(random.Random(0).choice(ClaimDrawer(1).pairs(5)), ClaimPair)
