"""The report: says what is known, in numbers that come from the metrics, and is silent about the rest."""

from k2jax.report.markdown import write_report
from k2jax.report.metrics import MetricsLog
from k2jax.report.samples import write_sample
from k2jax.report.summary import Baselines, DataSource, RunSummary
from tests.report.synthetic import records


def log(workdir) -> None:
    with MetricsLog(workdir, resume_step=0, tensorboard=False) as metrics:
        for line in records():
            metrics.write(line["step"], {key: value for key, value in line.items() if key != "step"})


def full(workdir) -> str:
    log(workdir)
    (workdir / "plots").mkdir()
    (workdir / "plots" / "loss.png").write_bytes(b"")
    for step, text in ((40, "first"), (80, "middle"), (120, "last ``` one")):
        write_sample(workdir, step, "import os\n", text)
    summary = RunSummary(
        "Quick start",
        stage="pretrain",
        status="finished",
        command="python -m k2jax.train --config=quick.py --workdir=runs/quick",
        config={"model.layers": 4},
        versions={"jax": "0.10.2"},
        device="CPU, 2 cores",
        parameters_total=8_612_345,
        parameters_active=3_100_000,
        total_steps=150,
        held_out="251 kB",
        baselines=Baselines(unigram_entropy=4.6, gzip=1.93, xz=1.62),
        sources=[DataSource("stdlib", 3_400_000, 0.72, 3)],
        newton_schulz_share=0.1149,
        qk_clip_tau=100.0,
        peak_flops=2.5e11,
        peak_is_measured=True,
        changes=[("40", "optimizer.learning_rate", "0.01", "0.001")],
    )
    return write_report(workdir, summary).read_text()


def test_a_report_tells_the_whole_run(tmp_path):
    text = full(tmp_path)
    assert text.startswith(
        "# Quick start\n\nFinished: 120 of 150 steps; **1.380 bits per byte** on held-out text, 30.0 %"
    )
    for line in (
        "| this model           |         1.380 |             30.0 % |",
        "| unigram byte entropy |         4.600 |              100 % |",
        "| gzip -9              |         1.930 |             42.0 % |",
        "- parameters: 8.61M in all, 3.10M active per token",
        "- versions: jax 0.10.2",
        "| `model.layers` | `4`   |",
        "- steps: 120 of 150",
        "- tokens: 492k",
        "- time: 1 min 00 s",
        "- throughput: 6,800 tokens/s (median)",
        "- model FLOPs utilisation: 30.0 % of 0.250 TFLOP/s, measured with a float32 matrix product (median)",
        f"- training loss, last step: {records()[-1]['loss']:.3f} nats per token",
        f"mean of the last 12 records: {sum(line['loss'] for line in records()[-12:]) / 12:.3f} nats",
        "|         40 | `optimizer.learning_rate` | `0.01` | `0.001` |",
        "## MuonClip",
        "- peak memory: 2.00 GB",
        "- validation loss: 2.880 nats per token",
        "- loss spikes: 1",
        "- heads clipped: 6 in 3 of the logged steps",
        "- QK-Clip threshold: 100",
        "- Newton-Schulz, of the training FLOPs of its matrices: 11.5 %",
        "0.517 in the first steps, 0.0175 in the last",
        "| stdlib | 3.40M  |        0.72 | 2.45M       |               3 |",
        "![Loss and held-out bits per byte](plots/loss.png)",
        "python -m k2jax.train --config=quick.py --workdir=runs/quick",
    ):
        assert line in text, line
    highest = max(records(), key=lambda record: record["max_logit"])
    assert f"- highest attention logit: {highest['max_logit']:.1f} at step {highest['step']}" in text


def test_samples_of_the_first_and_the_last_step_are_shown_unbroken(tmp_path):
    text = full(tmp_path)
    assert "### Step 40\n" in text and "### Step 120\n" in text and "middle" not in text
    assert "````text\nimport os\nlast ``` one\n````\n" in text


def test_only_existing_plots_are_linked(tmp_path):
    assert "max_logit.png" not in full(tmp_path)


def test_what_is_given_wins_over_the_metrics(tmp_path):
    log(tmp_path)
    text = write_report(tmp_path, RunSummary("x", val_bits_per_byte=1.234, spikes=7)).read_text()
    assert "1.234" in text and "loss spikes: 7" in text and "of unigram entropy" not in text


def test_nothing_known_is_a_title(tmp_path):
    assert write_report(tmp_path, RunSummary("Bare")).read_text() == "# Bare\n"


def test_null_metrics_are_unknown(tmp_path):
    with MetricsLog(tmp_path, resume_step=0, tensorboard=False) as metrics:
        metrics.write(1, {"loss": float("nan"), "max_logit": float("-inf"), "tokens": 10})
    text = write_report(tmp_path, RunSummary("x")).read_text()
    assert "nan" not in text and "None" not in text and "tokens: 10" in text


def test_a_run_without_muon_has_no_section_of_that_name(tmp_path):
    log(tmp_path)
    text = write_report(tmp_path, RunSummary("AdamW")).read_text()
    assert "MuonClip" not in text and "## Attention\n\n- highest attention logit" in text
    muon = write_report(tmp_path, RunSummary("Muon", newton_schulz_share=1.05)).read_text()
    assert "## Muon\n" in muon and "training FLOPs of its matrices: 105 %" in muon


def test_a_gap_to_the_validation_loss_is_explained_where_no_text_was_seen_twice(tmp_path):
    log(tmp_path)
    losses = {"mean_loss": 2.10, "val_loss": 2.88}
    once = RunSummary("once", sources=[DataSource("a", 100, 0.7)], **losses)
    assert "2.880 nats per token, 0.78 above the training loss. No text was seen twice" in write_report(
        tmp_path, once
    ).read_text().replace("\n", " ")
    twice = RunSummary("twice", sources=[DataSource("a", 100, 0.7), DataSource("b", 100, 1.2)], **losses)
    near = RunSummary("near", sources=[DataSource("a", 100, 0.7)], mean_loss=2.86, val_loss=2.88)
    for summary in (twice, near):
        assert "No text was seen twice" not in write_report(tmp_path, summary).read_text()


def test_a_report_of_reinforcement_learning_shows_rewards_and_its_pictures_and_no_cross_entropy(tmp_path):
    with MetricsLog(tmp_path, resume_step=0, tensorboard=False) as metrics:
        for step in range(1, 101):
            metrics.write(step, {"reward": step / 100, "loss": -0.01, "spikes": 7})
    (tmp_path / "plots").mkdir()
    for name in ("loss", "drift", "accuracy", "verdicts", "responses"):
        (tmp_path / "plots" / f"{name}.png").write_bytes(b"")
    shares = [("greedy", "0.641 (0.555 to 0.719)", "0.938 (0.882 to 0.968)")]
    summary = RunSummary("Answers", stage="rl", total_steps=100, held_out="Of 128 tasks.", held_out_shares=shares)
    text = write_report(tmp_path, summary).read_text()
    assert "100 of 100 iterations; **0.938 of held-out tasks right**, 0.641 at the beginning.\n" in text
    assert "\nOf 128 tasks.\n" in text and "- iterations: 100 of 100" in text
    assert "first iterations: 0.055" in text and "last iterations: 0.955" in text  # of 10 records each
    assert "nats per token" not in text and "spikes" not in text and "bits per byte" not in text
    pictures = [line.partition("(plots/")[2] for line in text.splitlines() if line.startswith("![")]
    assert pictures == [f"{name}.png)" for name in ("accuracy", "responses", "drift", "verdicts", "loss")]
