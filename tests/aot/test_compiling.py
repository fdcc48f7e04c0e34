"""What is said and returned where something does not fit; nothing is compiled here."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest

from k2jax import cli
from k2jax.aot import __main__ as aot
from k2jax.aot import compiling, topology
from k2jax.aot.cost import published
from k2jax.aot.cost.hbm import Hbm
from k2jax.aot.cost.sweep import Candidate
from k2jax.aot.report import tables
from k2jax.config import replace_keys
from k2jax.errors import UserError
from tests.aot.cost.test_estimate import TINY, TOPOLOGY, config, devices

ARGUMENTS = ["--config=experiments/pretrain/nano.py", f"--topology={TOPOLOGY}"]


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    """Other processes may have libtpu open."""
    topology.prepare()


def estimated(parallel, gigabytes, given):
    """A layout that takes so much by estimate."""
    size = SimpleNamespace(hbm=SimpleNamespace(total=gigabytes))
    changed = dataclasses.replace(given, parallel=dataclasses.replace(given.parallel, **parallel))
    return Candidate(changed, size, given)


def test_what_was_refused_is_not_proposed_nor_what_takes_as_much(monkeypatch):
    given = config()
    found = [
        estimated({}, 90, given),
        estimated({"expert": 4, "data": 1}, 94, given),
        estimated({"expert": 8, "stage": 1, "virtual_stages": 1, "data": 1}, 70, given),
    ]
    monkeypatch.setattr(compiling, "best_layouts", lambda *_: found)
    line = compiling.too_large(given, TOPOLOGY, "97GiB of 95GiB")
    assert line.startswith("the step does not fit: it needs 97GiB of 95GiB; by estimate this fits: ")
    assert "expert=8" in line and "\n" not in line
    monkeypatch.setattr(compiling, "best_layouts", lambda *_: found[:2])
    assert compiling.too_large(given, TOPOLOGY, "97GiB of 95GiB").endswith("no layout needs less: take more devices")


@pytest.mark.parametrize("axis", ["context", "tensor"])
def test_what_a_sweep_does_not_estimate_is_1_in_what_is_proposed(axis):
    line = compiling.too_large(config(**{axis: 2, "data": 1}), TOPOLOGY, "97GiB of 95GiB")
    proposed = dict(re.findall(r"--config\.parallel\.(\w+)=(\d+)", line))
    sizes = {"stage": "2", "virtual_stages": "2", "expert": "2", "data": "2", "expert_chunks": "1"}
    assert proposed == {**sizes, axis: "1"}, line


def test_what_a_tpu_would_run_is_traced(monkeypatch):
    """Widths that the experts' kernels do not take: plain JAX there, the other kernels as ever, and a note."""
    model = replace_keys(TINY, {"layers": 2, "moe.expert_ffn": 192})
    given = config(model=model, expert=1, data=8, stage=1, virtual_stages=1, micro_batches=2)
    devices()  # libtpu is told what to be before it starts
    step = compiling.traced_step(given, TOPOLOGY)
    text = str(step.traced.jaxpr)
    assert "name=mla_attention_forward" in text and "name=routed_experts" not in text
    monkeypatch.setattr(compiling, "traced_step", lambda *_: step)
    monkeypatch.setattr(compiling, "analyse", lambda *_: Noted(["loops"]))
    first, note = compiling.compile_training(given, TOPOLOGY).notes
    assert first == "loops" and "512 and 192" in note and "\n" not in note
    assert compiling.compile_training(config(), TOPOLOGY).notes == ["loops"]
    with pytest.raises(UserError, match="not 512 and 192; use auto"):
        compiling.for_tpu(replace_keys(given, {"model": model, "model.kernels": "pallas"}))


@dataclasses.dataclass(frozen=True)
class Noted:
    """The notes of a report."""

    notes: list


class Report:
    """Of a step that was compiled."""

    def __init__(self, total):
        self.hbm = Hbm({"parameters": total}, 95e9)

    def _asdict(self):
        return {"hbm": self.hbm}


def run(monkeypatch, capsys, sizes, *more):
    """``k2jax.aot --sweep`` with layouts of these sizes [bytes]; None where the compiler gives up."""
    layouts = [Candidate(config(expert=2**number, data=4 // 2**number), {}, config()) for number in range(len(sizes))]

    def compile_training(one, _):
        size = sizes[[layout.config for layout in layouts].index(one)]
        if size is None:
            raise compiling.DoesNotFit("120GiB of 95GiB")
        return Report(size)

    monkeypatch.setattr(compiling, "best_layouts", lambda *_: layouts)
    monkeypatch.setattr(compiling, "compile_training", compile_training)
    monkeypatch.setattr(published, "published_runs", list)
    monkeypatch.setattr(tables, "sweep_table", lambda *_: "layouts")
    monkeypatch.setattr(tables, "training_table", lambda report, _: f"table of {report.hbm.needs}")
    values, _ = cli.parse(["aot", *ARGUMENTS, "--sweep", f"--best={len(sizes)}", *more], aot.define, "")
    return aot.main(values), *capsys.readouterr()


def test_a_sweep_goes_on_where_a_layout_does_not_fit(monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, [None, 50e9, 99e9])
    assert code == 0
    assert "table of 50.0 GB of 95 GB" in out
    refused = err.splitlines()
    assert len(refused) == 2 and "expert=1 " in refused[0] and "expert=4 " in refused[1]
    assert refused[0].endswith("does not fit: it needs 120GiB of 95GiB")
    code, out, _ = run(monkeypatch, capsys, [None, 50e9], "--json")
    assert code == 0 and [one["hbm"]["total"] for one in json.loads(out)["compiled"]] == [50e9]


def test_a_sweep_of_which_nothing_fits_ends_with_1(monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, [None, 99e9])
    assert code == 1 and err.splitlines()[-1].startswith("error: of 2 layouts none of the 2 compiled ones fits")
