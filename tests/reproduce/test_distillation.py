"""The study of distillation: its runs fit together, and its summary says which share of a specialist is kept."""

import pytest

from k2jax.reproduce import RunResult
from k2jax.reproduce.study import run_configs
from k2jax.reproduce.study_file import load_study_file

distillation = load_study_file("distillation")


def results(accuracy):
    """Made-up results: ``accuracy(label, class, seed)``."""
    made = {}
    for run, config in run_configs(distillation.STUDY, "runs").items():
        seed, name = config.train.seed, run.partition("_")[2]
        labels = ("letters", "averaged") if name == "letters" else (name,)
        evaluation = {
            label: {kind: accuracy(label, kind, seed) for kind in distillation.KINDS}
            for label in labels
            if label in distillation.LABELS
        }
        gaps = {f"distill/reverse_kl/{kind}": 0.1 for kind in distillation.KINDS}
        records = [{"step": step} | gaps for step in (1, 2)]
        made[run] = RunResult(config, records, 0, evaluation)
    return made


def test_every_run_starts_from_a_run_before_it_and_teachers_are_the_specialists(tmp_path):
    before = set()
    for run, config in run_configs(distillation.STUDY, tmp_path).items():
        if config.init_from:
            assert config.init_from in before, run
        named = [entry.partition("=") for entry in config.rl.distill.teachers]
        assert all(checkpoint in before and checkpoint.endswith(f"_{name}") for name, _, checkpoint in named)
        assert bool(named) == run.endswith(("distilled", "rewarded")) == bool(config.rl.distill.weight)
        before.add(str(tmp_path / run))


@pytest.mark.parametrize(("student", "verdict"), [(0.90, "keeps 95 %"), (0.80, "does not keep 95 %")])
def test_the_share_that_is_kept_is_of_the_own_specialist_and_the_worst_seed_counts(student, verdict):
    """Specialists solve 0.9 of their own class and 0.1 of the other; the student is 0.01 lower on seed 2."""

    def accuracy(label, kind, seed):
        if label in distillation.KINDS:
            return 0.9 if label == kind else 0.1
        return (student if label == "distilled" else 0.45) - 0.01 * (seed == 2)

    text = distillation.summarize(results(accuracy)).markdown
    assert verdict in text and f"The least share is {(student - 0.01) / 0.9:.3f}" in text
    assert f"mean of the weights {0.44 / 0.9:.3f}" in text
    assert "Each specialist is the better one" in text


def test_a_specialist_that_is_not_the_better_one_is_said():
    text = distillation.summarize(results(lambda *which: 0.5)).markdown
    assert "Each specialist is not the better one" in text
