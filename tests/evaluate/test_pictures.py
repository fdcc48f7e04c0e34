"""Scores of answers about pictures, and the questions that are asked."""

from absl import flags
import numpy as np
import pytest

from k2jax.checkpoint import Checkpoints
from k2jax.config import defaults, phase, source
from k2jax.config.build import resolve, to_json
from k2jax.config.identity import fixed_keys
from k2jax.drawings.synthetic import BASIC_KINDS, KINDS, synthetic_sample
from k2jax.errors import UserError
from k2jax.evaluate import pictures
from k2jax.evaluate.picture_scores import score_answer
from k2jax.evaluate.pictures import LONGEST, LONGEST_CODE, evaluate_pictures, exchanged


@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_answer_scores_one_and_another_one_less(kind):
    some, *others = (synthetic_sample(0, index, kind=kind, split="held_out") for index in range(6))
    assert score_answer(some, some.answer) == 1
    assert sum(score_answer(some, other.answer) for other in others) < 0.9 * len(others)
    assert score_answer(some, "") == 0
    for numbers in (2, 4, 6):
        assert score_answer(some, "[" + ",".join(["9" * 400] * numbers) + "]") < 0.1


def test_an_outline_with_other_corners_has_its_overlap_and_two_outlines_nothing():
    drawn = (synthetic_sample(0, index, kind="outline") for index in range(20))
    square = next(sample for sample in drawn if "square" in sample.question)
    left, top, right, bottom = square.boxes[0]
    half = f"[{left},{top},{right},{top},{left},{bottom}]"
    assert score_answer(square, f"It is {half}.") == pytest.approx(0.5, abs=0.05)
    assert score_answer(square, half * 2) == score_answer(square, "[1,2,3,4,5]") == 0


def test_exchanged_pictures_are_those_of_the_other_questions():
    samples = [synthetic_sample(0, index, kind="count") for index in range(3)]
    shown = exchanged(samples)
    assert [sample.image for sample in shown] == [samples[1].image, samples[2].image, samples[0].image]
    assert [sample._replace(image=None) for sample in shown] == [sample._replace(image=None) for sample in samples]


def scores(monkeypatch, kinds, max_tokens=0, **drawn):
    """Scores of a model that answers every question about the picture that it is shown with ``unsure``."""
    config, limits = defaults("sft"), []
    config.data.sources = {"drawn": source(kind="synthetic_images", **drawn), "words": source(kind="synthetic_images",
                                           pictures=("read",), side=256, height=28)}  # fmt: skip
    monkeypatch.setattr(pictures, "load_picture_reader", lambda checkpoint, config, longest: limits.append(longest))
    monkeypatch.setattr(pictures, "greedy_answers", lambda reader, contents, longest: ["unsure"] * len(contents))
    found = evaluate_pictures("somewhere", config, 3, kinds=kinds, max_tokens=max_tokens)
    assert all((score.seen < 0.5, score.questions) == (True, 3) for score in found)
    return [score.kind for score in found], limits


def test_a_run_is_asked_what_it_trained_on_or_what_is_named(monkeypatch):
    assert scores(monkeypatch, ()) == (sorted(BASIC_KINDS), [LONGEST])
    assert scores(monkeypatch, (), pictures=("click", "point")) == (["click", "point", "read"], [LONGEST])
    assert scores(monkeypatch, ("table", "code")) == (["table", "code"], [LONGEST_CODE])
    assert scores(monkeypatch, ("code",), max_tokens=9) == (["code"], [9])
    assert scores(monkeypatch, ("point",), side=84, pictures=("locate",)) == (["point"], [LONGEST])


def test_a_kind_that_is_unknown_or_larger_than_the_pictures_of_a_run_is_refused(monkeypatch):
    with pytest.raises(UserError, match="no kind 'tabel'; did you mean 'table'"):
        scores(monkeypatch, ("tabel",))
    with pytest.raises(UserError, match="pictures of 84 x 84 pixels are too small for chart: draw at least 112 x 84"):
        scores(monkeypatch, ("chart",), side=84)


def test_the_command_takes_prompts_as_long_as_the_rows_of_the_phase_of_the_checkpoint(monkeypatch, tmp_path):
    config, seen = defaults("pretrain", model="micro"), []
    config.data.sources = {"some": source(kind="stdlib")}
    config.data.sequence_length, config.train.steps = 64, 4
    config.phases.first = phase(rate="constant")
    config.phases.second = phase(begin=2, rate="constant", overrides=("data.sequence_length=128",))
    (tmp_path / "config.json").write_text(to_json(resolve(config)))
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 4):
        checkpoints.save(step, {"w": np.zeros(2)}, {"m": np.zeros(2)}, {"config": fixed_keys(resolve(config), step)})
    checkpoints.close()
    monkeypatch.setattr(pictures.runtime, "prepare", lambda: None)
    monkeypatch.setattr(pictures, "evaluate_pictures", lambda path, config, *_, **__: seen.append(config) or [])
    for place in ("checkpoints/2", "checkpoints/4", ""):
        values = flags.FlagValues()
        pictures.define(values)
        values(["pictures", f"--checkpoint={tmp_path / place}"])
        pictures.main(values)
    assert [config.data.sequence_length for config in seen] == [64, 128, 128]
