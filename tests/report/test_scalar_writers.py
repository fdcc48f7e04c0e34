"""Weights & Biases beside metrics.jsonl, by the package itself without a network: what its file of a run holds."""

import json
import math
import sys

import pytest

from k2jax.errors import UserError
from k2jax.report.metrics import MetricsLog
from k2jax.report.scalar_writers import WandbProject

PROJECT = WandbProject("somebody/small", {"train.steps": 4, "model.layers": 2})


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No network, and no login of the machine."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    yield
    sys.modules.get("wandb") and sys.modules["wandb"].teardown()  # it reads the variables once


def records(file):
    """The records of a run's file of one block, and their kinds: a checksum (4), a length (2), a type (1), a record."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place = file.read_bytes(), 7
    while place < len(content):
        size = int.from_bytes(content[place + 4 : place + 6], "little")
        assert content[place + 6] == 1  # whole
        yield Record.FromString(content[place + 7 : place + 7 + size])
        place += 7 + size


def values(item):
    return {(each.key or "/".join(each.nested_key)): json.loads(each.value_json) for each in item}


@pytest.mark.slow
def test_the_scalars_of_a_resumed_run_belong_to_one_run_and_nothing_else_leaves(tmp_path):
    workdir, logged = tmp_path / "run", []
    for resume, steps in ((0, (1, 2)), (2, (3,))):
        with MetricsLog(workdir, resume_step=resume, tensorboard=False, wandb=PROJECT) as log:
            [place] = log.places
            for step in steps:
                log.write(step, {"loss": step / 2, "eval/avg@8": 0.5, "heads": [[1.0]], "bad": math.nan})
        sys.modules["wandb"].teardown()  # the end of a process, which waits for its files
        folder = workdir / "wandb" / place.rpartition("/")[2]
        [file] = folder.glob("*.wandb")
        logged.append(list(records(file)))
        assert [path.name for path in (folder / "files").iterdir()] == []
    runs = [record.run for every in logged for record in every if record.WhichOneof("record_type") == "run"]
    assert {(run.entity, run.project, run.display_name) for run in runs} == {("somebody", "small", "run")}
    assert {run.run_id for run in runs} == {(workdir / "wandb" / "run_id").read_text()}
    assert values(runs[0].config.update) == {"_wandb": {}} | dict(PROJECT.config)
    history = [
        {key: value for key, value in values(record.history.item).items() if key not in ("_timestamp", "_runtime")}
        for every in logged for record in every if record.WhichOneof("record_type") == "history"
    ]  # fmt: skip
    assert history == [{"loss": step / 2, "eval/avg@8": 0.5, "_step": step} for step in (1, 2, 3)]


@pytest.mark.parametrize(("package", "message"), [(True, "wandb login.*WANDB_MODE=offline"), (False, "pip install -e")])
def test_a_run_that_cannot_be_sent_ends_in_one_line(tmp_path, monkeypatch, package, message):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    if not package:
        monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=f"^config.log.wandb: .*{message}"):
        MetricsLog(tmp_path / "run", resume_step=0, tensorboard=False, wandb=PROJECT)
