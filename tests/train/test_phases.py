"""Whole runs of several phases: killed at every seam, over meshes, and with the optimizer's state kept or lost."""

import signal
from unittest import mock

import jax
import jax.numpy as jnp
import optax
import pytest

from k2jax.checkpoint import committed_steps
from k2jax.config import phase, resolve, source
from k2jax.convert.loading import open_pretrained
from k2jax.report.metrics import read_metrics
from k2jax.train import loop, train
from k2jax.train.run import Run
from k2jax.train.validation import Validation
from tests.emulated import ROOT
from tests.refusal import refused
from tests.train.test_run import losses, start, wait_for_step
from tests.train.tiny import tiny_config, write_corpus

pytestmark = pytest.mark.slow
LONG = ("data.sequence_length=64", "train.batch_size=2", "train.micro_batches=1", "model.yarn.factor=4")
SEAMS = (6, 10, 14)


def four_phases(folder, mesh=()):
    """Two mixtures, two lengths, a decay; the first phases have another mesh than the last two."""
    config = tiny_config(folder)
    config.model.yarn.original_positions = 16
    config.train.steps = 18
    config.checkpoint.every = 1000
    config.eval.update({"every": 1000, "sample_tokens": 0})
    config.phases.both = phase(rate="constant", overrides=mesh)
    config.phases.two = phase(begin=SEAMS[0], mixture=("two=1",), rate="constant", overrides=mesh)
    config.phases.long = phase(begin=SEAMS[1], rate="cosine", rate_to=1e-3, overrides=LONG)
    config.phases.end = phase(begin=SEAMS[2], mixture=("one=1", "two=3"), rate="linear", rate_to=1e-4, overrides=LONG)
    return config


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "config.py").write_text(
        "from tests.train.test_phases import four_phases\n\n"
        f"def get_config():\n    return four_phases({str(tmp_path)!r})\n"
    )
    return tmp_path


def test_a_run_that_is_killed_at_every_seam_gives_the_same_losses_bit_for_bit(folder):
    """As the line of the seam is written, while its checkpoint may be, and at the second one in the step behind it."""
    assert train(resolve(four_phases(str(folder))), folder / "whole") == 0
    for step in (SEAMS[0], SEAMS[1] + 1, SEAMS[2]):
        process = start(folder, folder / "killed")
        wait_for_step(folder / "killed", step, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert train(resolve(four_phases(str(folder))), folder / "killed") == 0
    assert losses(folder / "killed") == losses(folder / "whole")
    records = {workdir: read_metrics(folder / workdir) for workdir in ("whole", "killed")}
    for key in ("learning_rate", "grad_norm", "update_norm", "tokens", "phase", "val_loss"):
        assert [each.get(key) for each in records["killed"]] == [each.get(key) for each in records["whole"]], key
    rates = [each["learning_rate"] for each in records["whole"]]
    assert rates[9] == rates[10] == pytest.approx(5e-3) and rates[14] == pytest.approx(1e-3)
    assert open_pretrained(folder / "whole").model.yarn.factor == 4.0


def stopping(step):
    """A patch with which runs are asked to stop behind a step."""
    log = Run.log

    def terminated(run, done, record):
        log(run, done, record)
        if done == step:
            signal.raise_signal(signal.SIGTERM)

    return mock.patch.object(Run, "log", terminated)


@pytest.mark.devices(2)
def test_a_phase_goes_on_with_the_state_of_one_on_another_mesh(folder):
    """Experts over two devices, then rows; a run that stops at that seam and at none has the same losses."""
    config = resolve(four_phases(str(folder), mesh=("parallel.expert=2",)))
    assert train(config, folder / "whole") == 0
    with stopping(SEAMS[1]):
        assert train(config, folder / "stopped") == 143
    assert committed_steps(folder / "stopped")[-1] == SEAMS[1]
    assert train(config, folder / "stopped") == 0
    assert losses(folder / "stopped") == losses(folder / "whole")
    assert train(resolve(four_phases(str(folder))), folder / "one mesh") == 0
    ours, theirs = ([loss for _, loss, _ in losses(folder / name)] for name in ("whole", "one mesh"))
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_a_run_stops_before_a_phase_that_needs_other_devices(folder, capsys):
    config = four_phases(str(folder))
    config.phases.long.overrides = (*LONG, "parallel.context=64")
    with refused("devices"):
        train(resolve(config), folder / "small")
    assert "the run stops before phase long, to be continued on other devices" in capsys.readouterr().out
    assert committed_steps(folder / "small")[-1] == SEAMS[1]
    assert train(resolve(four_phases(str(folder))), folder / "small") == 0


KEPT, LOST = "kept", "lost"
BEHIND = 5


def seams_of(folder, state):
    """By phase: the held-out loss at its beginning, and the highest of its first steps, on the same rows."""
    config = tiny_config(str(folder))
    config.data.sources = {
        "code": source(kind="text", path=str(ROOT / "k2jax" / "optim")),
        "prose": source(kind="text", path=str(ROOT / "docs")),
    }
    config.data.sequence_length = 64
    config.train.update({"steps": 150, "batch_size": 8, "micro_batches": 1})
    config.eval.update({"every": 1000, "rows": 32, "final_rows": 32, "sample_tokens": 0})
    config.checkpoint.every = 1000
    rows = ("data.sequence_length=256", "train.batch_size=2")
    config.phases.code = phase(mixture=("code=9", "prose=1"), rate="constant")
    config.phases.prose = phase(begin=120, rate="constant")
    config.phases.decay = phase(begin=130, rate="cosine", rate_to=1e-3)
    config.phases.long = phase(begin=140, rate="linear", rate_to=4e-4, overrides=rows)
    found, train_phase = {}, loop._train_phase
    log = Run.log

    def measured(run, entered, data, *arguments):
        if not entered.first:
            return train_phase(run, entered, data, *arguments)
        if state == LOST:
            fresh = jax.jit(run.program.optimizer.init)(run.state.params)
            run.state = run.state.replace(opt_state=with_counts(fresh, run.state.step))
        validation = Validation(run, data)
        begun = found[entered.name] = [validation._held_out(run.done, False)["val_loss"]]

        def logged(each, step, record):
            log(each, step, record)
            if step - entered.first <= BEHIND:
                begun.append(validation._held_out(step, False)["val_loss"])

        with mock.patch.object(Run, "log", logged):
            return train_phase(run, entered, data, *arguments)

    with mock.patch.object(loop, "_train_phase", measured):
        assert train(resolve(config), folder / state) == 0
    return {name: (first, max(behind)) for name, (first, *behind) in found.items()}


def with_counts(opt_state, step):
    """The state whose schedules are at a step of the run, so that the learning rate is that of the run."""
    is_schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)  # noqa: E731
    count = lambda part: part._replace(count=jnp.array(step, part.count.dtype))  # noqa: E731
    return jax.tree.map(lambda part: count(part) if is_schedule(part) else part, opt_state, is_leaf=is_schedule)


def test_the_loss_does_not_jump_at_a_seam(tmp_path, capsys):
    """Beside it stands what it does where the optimizer's state is lost, of which so small a run demands nothing."""
    found = {state: seams_of(tmp_path, state) for state in (KEPT, LOST)}
    jumps = {state: {name: highest - first for name, (first, highest) in of.items()} for state, of in found.items()}
    with capsys.disabled():
        for name in jumps[KEPT]:
            print(f"\n{name}: " + ", ".join(f"{state} {jumps[state][name]:+.4f}" for state in (KEPT, LOST)), end="")
    assert max(jumps[KEPT].values()) < 0.02


def with_images(folder):
    """Pictures, one to a row, and then rows that are twice as long and have two rows of the tower for them."""
    config = tiny_config(folder)
    config.model.vision.update({"layers": 1, "width": 16, "heads": 2, "ffn": 24, "grid": 4})
    config.data.sources.pictures = source(kind="synthetic_images", max_documents=30, side=64, pictures=("count",))
    config.data.tokenizer.media = True
    config.data.chat_format = "plain"
    config.data.images.patches = 36
    config.data.sequence_length = 96
    config.train.steps = 8
    config.checkpoint.every = 1000
    config.eval.update({"every": 1000, "sample_tokens": 0})
    config.phases.short = phase(rate="constant", overrides=("data.images.share=(0.5,)",))
    longer = ("data.sequence_length=192", "data.images.rows=2", "data.images.share=(0.5,)")
    config.phases.long = phase(begin=4, rate="linear", rate_to=1e-4, overrides=longer)
    return resolve(config)


def test_a_phase_with_two_rows_of_the_tower_for_each_row_of_tokens_goes_on_behind_one_with_one(folder, capsys):
    assert train(with_images(str(folder)), folder / "whole") == 0
    corpora = {each.name for each in (folder / "cache" / "shards").iterdir() if each.name.startswith("synthetic")}
    assert len(corpora) == 2, "measured for the rows of either phase"
    with stopping(4):
        assert train(with_images(str(folder)), folder / "stopped") == 143
    assert train(with_images(str(folder)), folder / "stopped") == 0
    assert losses(folder / "stopped") == losses(folder / "whole")
    shown = [record["vision_max_logit"] for record in read_metrics(folder / "whole")]
    assert len(shown) == 8 and all(shown)
