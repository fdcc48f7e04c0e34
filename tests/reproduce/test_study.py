"""Studies: their summaries of known records, and that runs with another configuration are refused."""

import subprocess
import sys

import pytest

from k2jax.config import defaults, replace_keys, resolve, task, to_json
from k2jax.errors import UserError
from k2jax.reproduce import RunResult, study
from k2jax.reproduce import study_file as loading

muon_vs_adamw, qk_clip, sparsity = (loading.load_study_file(name) for name in ("muon_vs_adamw", "qk_clip", "sparsity"))


def result(losses, every=10, seconds_per_step=1.0, **overrides) -> RunResult:
    """A run whose validation loss is ``losses`` at every tenth step."""
    config = defaults("pretrain")
    config.update_from_flattened_dict({"train.steps": every * len(losses), **overrides})
    records = [{"step": s, "seconds": 100 + s * seconds_per_step} for s in range(1, every * len(losses) + 1)]
    for number, loss in enumerate(losses, start=1):
        records[every * number - 1]["val_loss"] = loss
    return RunResult(resolve(config), records, 0)


def grid(muon, adamw):
    """Rates 1, 2 and 3 of both; the middle one is ``muon`` or ``adamw``."""
    runs = {}
    for name, middle, seconds in (("muonclip", muon, 2.0), ("adamw", adamw, 1.0)):
        for rate, losses in ((1.0, [9.0, 9.0, 9.0, 9.0]), (2.0, middle), (3.0, [9.0, 9.0, 9.0, 9.0])):
            keys = {"optimizer.name": name, "optimizer.learning_rate": rate}
            runs[f"{name}{rate}"] = result(losses, seconds_per_step=seconds, **keys)
    return runs


def test_muon_reaches_the_target_between_two_validations():
    """AdamW ends at 5.0 after 40 steps of 1 s; Muon falls from 6 to 4 between its steps 10 and 20, of 2 s each."""
    text = muon_vs_adamw.summarize(grid([6.0, 4.0, 3.0, 2.0], [8.0, 7.0, 6.0, 5.0])).markdown
    assert "with 0.375 (0.375 to 0.375) of its tokens and 0.750 (0.750 to 0.750) of its seconds" in text
    assert "1 of 1 seeds" in text


def test_a_muon_that_never_gets_there_is_said():
    assert "never reaches" in muon_vs_adamw.summarize(grid([6.0, 6.0, 6.0, 6.0], [8.0, 7.0, 6.0, 5.0])).markdown


def test_a_best_rate_at_the_edge_is_no_comparison():
    runs = grid([6.0, 4.0, 3.0, 2.0], [8.0, 7.0, 6.0, 5.0])
    del runs["adamw1.0"]
    assert "Not a valid comparison: the best rate of AdamW" in muon_vs_adamw.summarize(runs).markdown


def test_sparsity_says_which_way_it_falls_beside_the_spread():
    runs = {
        f"{experts}_{seed}": result([loss + 0.01 * seed], **{"model.moe.experts": experts, "train.seed": seed})
        for experts, loss in ((8, 5.0), (32, 5.2))
        for seed in (0, 1)
    }
    text = sparsity.summarize(runs).markdown
    assert "32 experts end 0.200 higher than 8, more than the widest range over seeds (0.010)" in text
    assert "5.005 (5.000 to 5.010)" in text


def test_qk_clip_counts_heads_above_the_threshold():
    runs = {}
    for name, values in (("muon", (5.0, 20.0)), ("muonclip", (5.0, 9.0))):
        run = result([3.0], every=2, **{"optimizer.name": name, "optimizer.qk_clip_tau": 10.0})
        for record, value in zip(run.records, values, strict=True):
            record["max_logit_heads"] = [[value, 1.0, 1.0, 1.0]] * 4
        runs[name] = run
    rows = [line.split("|")[1:-1] for line in qk_clip.summarize(runs).markdown.splitlines() if "Muon" in line]
    assert [[cell.strip() for cell in row][:4] for row in rows] == [
        ["Muon without QK-Clip", "20.0", "20.0", "12.5 %"],
        ["MuonClip", "9.00", "9.00", "0.0 %"],
    ]


def test_a_run_of_another_version_is_refused_and_a_done_one_kept(tmp_path):
    config = resolve(defaults("pretrain"))
    (tmp_path / "config.json").write_text(to_json(config))
    (tmp_path / "exit_code").write_text("3")
    assert study.train_once(config, tmp_path) == 3
    longer = replace_keys(config, {"train.steps": 7})
    with pytest.raises(UserError, match="another configuration; use a new --workdir"):
        study.train_once(longer, tmp_path)


def test_a_quick_look_keeps_proportions():
    lengths = {"short": {"train.steps": 40}, "long": {"train.steps": 120}}
    experiment = loading.Study(get_config=lambda: defaults("pretrain"), runs=lambda: lengths, summarize=pytest.fail)
    runs = study.shortened_runs(experiment, 30)
    assert [run["train.steps"] for run in runs.values()] == [10, 30]


def test_an_unknown_study_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no study 'nothing'; there are"):
        study.reproduce("nothing", tmp_path)


def test_a_study_without_a_summary_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "FOLDER", tmp_path)
    (tmp_path / "half.py").write_text("def get_config(): ...\ndef runs(): ...\n")
    with pytest.raises(UserError, match=r"half\.py has no STUDY"):
        study.reproduce("half", tmp_path)


@pytest.mark.parametrize(
    ("options", "wanted", "words"),
    [
        (
            ("kinds=sum3", "count=400"),
            50,
            r"distinct problems .* are in the split 'test'; lower count, or",
        ),
        (("kinds=sum6", "count=400"), 401, r"study 'few' measures on 401 held-out tasks, .* have 400; raise"),
    ],
)
def test_a_study_with_too_few_held_out_tasks_stops_before_its_first_run(tmp_path, monkeypatch, options, wanted, words):
    """Of 729 sums of three digits a tenth is held out, which is also less than the ``count`` of the dataset."""
    config = defaults("rl")
    config.rl.tasks = {"sums": task(dataset="characters", options=options)}
    config.rl.eval_prompts = wanted

    def begun(*_):
        pytest.fail("the study has begun")

    few = loading.Study(get_config=begun, runs=begun, summarize=begun, prepare=begun, held_out=lambda: [config])
    monkeypatch.setattr(study, "load_study", lambda name: few)
    with pytest.raises(UserError, match=words) as caught:
        study.reproduce("few", tmp_path)
    assert "\n" not in str(caught.value)


def test_every_study_that_measures_on_held_out_tasks_has_them_checked():
    for path in loading.FOLDER.glob("*.py"):
        words = ("rl.evaluation import evaluate_", "held_out_rewards(", "study.study(", "measured_episodes(")
        words += ("base.held_out_configs",)
        measures = any(word in path.read_text() for word in words)
        assert measures == bool(loading.load_study(path.stem).held_out()), path


def test_config_files_of_studies_do_not_import_jax():
    """Commands read them before they choose jax's platform."""
    load = "import runpy, sys\nfor name in sys.argv[1:]: runpy.run_path(name)\nassert 'jax' not in sys.modules"
    paths = sorted(map(str, loading.FOLDER.glob("*.py")))
    assert len(paths) >= 3
    subprocess.run([sys.executable, "-c", load, *paths], check=True)


def test_a_pattern_names_the_runs_to_do(monkeypatch, tmp_path, capsys):
    done = []

    def finish(config, workdir):
        done.append(workdir.name)
        return 0

    monkeypatch.setattr(study, "train_once", finish)
    monkeypatch.setattr(study, "read_metrics", lambda workdir: [])
    assert study.reproduce("qk_clip", tmp_path, only="muon") == 0
    assert done == ["muon"] and not (tmp_path / "table.md").exists()
    assert "without --only" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no run matches --only='nothing'; there are muon, muonclip"):
        study.reproduce("qk_clip", tmp_path, only="nothing")
