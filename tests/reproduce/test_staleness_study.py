"""The study of stale samples: its runs are bounded as their names say, and its summary reads what runs report."""

from k2jax.reproduce import RunResult
from k2jax.reproduce.study import run_configs
from k2jax.reproduce.study_file import load_study_file
from k2jax.rl.setup import check_config

staleness = load_study_file("staleness")


def test_runs_are_bounded_as_they_are_named_and_pass_the_checks_of_the_loop():
    for name, config in run_configs(staleness.STUDY, "runs").items():
        if config.stage != "rl":
            continue
        check_config(config)
        bounded = "_stale" in name
        assert (config.rl.engines.placement == "separate") == bounded == (config.rl.max_staleness is not None)
        if bounded:
            assert int(name.partition("_stale")[2][0]) == config.rl.max_staleness == config.rl.rollout.look_ahead - 1
            assert config.rl.loss.icepop.on == name.endswith("icepop")


def test_the_summary_holds_means_of_what_runs_report():
    found = {}
    for name, config in run_configs(staleness.STUDY, "runs").items():
        known = {"accuracy": 0.5, "policy/clipped": 0.25, "tokens/mismatch": 0.125, "staleness": 0.0}
        if "_stale" in name:
            known |= {"staleness": config.rl.max_staleness / 2, "window/stale": 0.01 * config.rl.max_staleness}
        records = [known | {"step": step} for step in range(1, 8)]
        scores = {"eval/greedy": 0.75, "eval/avg@8": 0.5, "eval/pass@8": 1.0}
        found[name] = RunResult(config, records, 0, scores if config.stage != "pretrain" else {})
    lines = staleness.summarize(found).markdown.splitlines()
    rows = {cells[1]: [cell.partition(" (")[0] for cell in cells[2:-1]]
            for line in lines if len(cells := [cell.strip() for cell in line.split("|")]) > 3}  # fmt: skip
    assert " ".join(rows["RL, at most 4 versions old, IcePop"]) == "0.750 0.500 1.000 2.00 0.0400 0.2500 0.12500"
    assert rows["RL, at most 0 versions old"][3:5] == ["0.00", "0.0000"]
    assert rows["RL, engine on the trainer's devices"][3:5] == ["0.00", "none"]
