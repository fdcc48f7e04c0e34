"""Golden runs: the numbers of whole runs, recorded once, to prove that restructured code still gives them.

``tests/golden/NAME.jsonl`` holds ``metrics.jsonl`` of each run of ``RUNS`` without what ``MEASURED`` names, and
``tests/golden/machine.json`` the processor and the packages with which all of them were recorded.

    python -m tests.golden_runs compare [NAME ...]     # bit for bit; every run unless some are named
    python -m tests.golden_runs compare --relative=1e-6
    python -m tests.golden_runs record [NAME ...]      # only where numbers are meant to change

``compare`` says for each run which keys differ and by how much relative to the larger value, and exits with 1 if a key
or a step is missing or new, or differs by more than ``--relative``. A run is a command of its own on one core, so that
its numbers do not depend on the number of cores; they may depend on the processor and on versions of packages, and
where a sampled token differs everything behind it does.
"""

import argparse
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
from importlib.metadata import version
import json
import os
from pathlib import Path
import platform
import resource
import subprocess
import sys
import tempfile
from typing import Any

from tests import golden_bases as bases

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "golden"
PACKAGES = ("jax", "jaxlib", "numpy", "pillow")
XLA_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"  # compile fast: tests/conftest.py
MEASURED = frozenset({
    "distill_seconds", "memory_gb", "mfu", "recompute_seconds", "rollout_seconds", "rollout_tokens_per_second",
    "seconds", "sync_gb_per_second", "sync_seconds", "tokens_per_second", "train_seconds",
})  # fmt: skip
"""Every key that a clock or the machine decides; nothing else is left out of the recorded files."""
MISSING, NEW, OTHER = "missing", "new", "not a number"


@dataclasses.dataclass(frozen=True)
class Golden:
    """One run: its command, its configuration, and what has to be in its folder before it starts."""

    module: str
    base: Callable[[str], Any]  # the editable config of a folder
    overrides: Mapping[str, Any]
    prepare: Callable[[Path], None] | None = None


SHORT = {"train.steps": 3, "rl.eval_prompts": 0, "checkpoint.every": 3}
RUNS = {
    "pretraining": Golden(
        "k2jax.train",
        bases.nano,
        {"train.steps": 4, "train.batch_size": 2, "data.sequence_length": 64, "eval.every": 2, "eval.sample_tokens": 4}
        | {"checkpoint.every": 4, "log.plots_every": 1000, "log.tensorboard": False, "data.held_out": 0.2},
        bases.write_texts,
    ),
    "fine_tuning": Golden(
        "k2jax.train", bases.sums, {"train.steps": 6, "eval.every": 3, "train.patience": 9}, bases.write_sums
    ),
    "k2_5_loss": Golden(
        "k2jax.rl", bases.low, SHORT | {"rl.loss.ratio_low": 0.98, "rl.loss.ratio_high": 1.02, "rl.loss.tau": 0.1}
    ),
    "toggle": Golden(
        "k2jax.rl",
        bases.stopping,
        SHORT
        | {
            "rl.toggle.period": 1,
            "rl.toggle.accuracy": 0.0,
            "rl.correct_reward": 0.0,
            "rl.tasks.low.options": ("letters=3",),
        },
    ),
    "trees": Golden(
        "k2jax.rl",
        bases.stopping,
        SHORT
        | {"rl.packing.layout": "tree", "rl.loss.name": "kat", "rl.loss.aggregation": "token"}
        | {"rl.loss.ratio_low": 0.99, "rl.loss.ratio_high": 1.01}
        | {"rl.tasks.low.options": ("turns=3",), "rl.tasks.low.max_tokens": 8},
    ),
    "critic": Golden("k2jax.rl", bases.critic, {"train.steps": 2, "rl.rollout.prompts": 8, "train.seed": 1}),
    "distillation": Golden("k2jax.rl", bases.distilling, SHORT | {"rl.distill.weight": 0.5}, bases.write_teachers),
    "images": Golden("k2jax.rl", bases.pictures, SHORT | {"train.steps": 2}),
    "ptx": Golden(
        "k2jax.rl",
        bases.texts_beside,
        SHORT | {"rl.loss.name": "k2", "rl.loss.ptx": 0.5, "rl.loss.ptx_rows": 2},
        bases.write_texts,
    ),
    "mcla_icepop": Golden(
        "k2jax.rl",
        bases.noisy,
        SHORT
        | {"rl.loss.old": "recompute", "rl.loss.mcla.passes": 2, "rl.updates": 2}
        | {"rl.loss.icepop.on": True, "rl.loss.icepop.low": 0.99, "rl.loss.icepop.high": 1.01},
    ),
    "partial_rollouts": Golden(
        "k2jax.rl",
        bases.stopping,
        {
            "rl.rollout.token_cap": 3,
            "rl.tasks.low.max_tokens": 12,
            "train.steps": 5,
            "checkpoint.every": 5,
            "eval.every": 2,
        },
    ),
}


def records_of(lines: str) -> list[dict[str, Any]]:
    """What is compared of the text of a ``metrics.jsonl``."""
    records = map(json.loads, lines.splitlines())
    return [{key: record[key] for key in sorted(record) if key not in MEASURED | {"crc32"}} for record in records]


def recorded(name: str) -> list[dict[str, Any]]:
    """The golden records of a run."""
    return records_of((FOLDER / f"{name}.jsonl").read_text(encoding="utf-8"))


def machine() -> dict[str, Any]:
    """What decides the code that XLA generates, and the rounding of everything else."""
    with contextlib.suppress(FileNotFoundError):  # of Linux alone
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
        cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        kept = {key: cpu.get(key) for key in ("vendor_id", "cpu family", "model", "model name")}
        names = sorted(cpu.get("flags", cpu.get("Features", "")).split())
        return {"system": platform.system()} | kept | {"flags": " ".join(names)} | _versions()
    return {"system": platform.system(), "model name": platform.processor()} | _versions()


def other_machine() -> list[str]:
    """Names of what differs between this machine and that of the golden files."""
    before = json.loads((FOLDER / "machine.json").read_text(encoding="utf-8"))
    now = machine()
    return [key for key in before | now if before.get(key) != now.get(key)]


def _versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def run(name: str, folder: Path, cache: Path) -> list[dict[str, Any]]:
    """The records of a run, done now.

    Args:
        name: of ``RUNS``.
        folder: an empty one for its data and its workdir.
        cache: folder of compiled programs, which runs of one machine may share.

    Raises:
        RuntimeError: the command failed; with its last output.
    """
    if RUNS[name].prepare:
        statement = f"RUNS[{name!r}].prepare(Path({str(folder)!r}))"
        _command(["-c", f"from pathlib import Path; from tests.golden_runs import RUNS; {statement}"], cache)
    config = "from tests.golden_runs import config_of\n\n\ndef get_config():\n    return config_of({!r}, {!r})\n"
    (folder / "config.py").write_text(config.format(name, str(folder)), encoding="utf-8")
    workdir = folder / "run"
    _command(["-m", RUNS[name].module, f"--config={folder / 'config.py'}", f"--workdir={workdir}"], cache)
    return records_of((workdir / "metrics.jsonl").read_text(encoding="utf-8"))


def config_of(name: str, folder: str):
    """The editable config of a run, for the config file of its command."""
    config = RUNS[name].base(folder)
    config.update_from_flattened_dict(RUNS[name].overrides)
    return config


def _command(words: list[str], cache: Path) -> None:
    """Runs Python on one core, with nothing of this process's settings that changes numbers."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": XLA_FLAGS,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
    }
    core = {min(os.sched_getaffinity(0))}
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )
    if ended.returncode:
        raise RuntimeError(f"python {' '.join(words)} exited with {ended.returncode}:\n{ended.stderr[-3000:]}")


def differences(before: list[dict], now: list[dict]) -> dict[str, float | str]:
    """The largest relative difference of every key, 0 for equal values; or the word for what is not comparable."""
    by_key: dict[str, list[tuple[Any, Any]]] = {}
    absent = object()
    old, new = ({record["step"]: record for record in records} for records in (before, now))
    for step in sorted(old | new):
        for key in sorted(old.get(step, {}) | new.get(step, {})):
            pair = tuple(records.get(step, {}).get(key, absent) for records in (old, new))
            by_key.setdefault(key, []).append(pair)
    found: dict[str, float | str] = {}
    for key, pairs in by_key.items():
        if any(value is absent for pair in pairs for value in pair):
            found[key] = MISSING if any(value is absent for _, value in pairs) else NEW
        else:
            each = [_relative(*pair) for pair in pairs]
            found[key] = OTHER if OTHER in each else max(each)
    return found


def _relative(before: Any, now: Any) -> float | str:
    """The relative difference of two values, the largest of all in lists."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        each = [_relative(*pair) for pair in zip(before, now, strict=True)]
        return OTHER if OTHER in each else max(each, default=0.0)
    if before == now:
        return 0.0
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (before, now)):
        return OTHER
    return abs(before - now) / max(abs(before), abs(now))


def too_large(found: Mapping[str, float | str], relative: float = 0.0) -> list[str]:
    """Lines about the keys that differ by more than ``relative``, or are missing or new."""
    by_key = {key: value for key, value in found.items() if isinstance(value, str) or value > relative}
    return [f"{key}: {value if isinstance(value, str) else f'{value:.1e}'}" for key, value in by_key.items()]


def _record(name: str, now: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(each) + "\n" for each in now)
    (FOLDER / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    print(f"{name}: {len(now)} records, {len(lines) / 1e3:.1f} kB")


def _compare(name: str, now: list[dict[str, Any]], relative: float) -> bool:
    """Prints how a run differs; whether that is too much."""
    found = differences(recorded(name), now)
    equal = sum(value == 0 for value in found.values())
    print(f"{name}: {equal} of {len(found)} keys are equal in all {len(now)} records")
    bad = too_large(found, relative)
    for line in too_large(found):
        print(f"  {line}{'' if line in bad else ' (allowed)'}")
    return bool(bad)


def main(words: list[str]) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden_runs", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}; all unless given")
    parser.add_argument("--relative", type=float, default=0.0, help="largest relative difference that compare allows")
    options = parser.parse_args(words)
    if unknown := set(options.names) - RUNS.keys():
        parser.error(f"there is no run {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    names, failed = options.names or list(RUNS), []
    if options.action == "record" and not options.names:
        (FOLDER / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n", encoding="utf-8")
    elif differing := other_machine():
        print(f"the golden files are of another machine or version ({', '.join(differing)})")
        if options.action == "record":
            parser.error("record all runs together, on one machine")
    with tempfile.TemporaryDirectory(prefix="k2jax-golden-") as folder:
        for name in names:
            own, cache = Path(folder) / name, Path(folder) / "cache"
            own.mkdir()
            before = _processor_seconds()
            now = run(name, own, cache)
            if options.action == "record":
                _record(name, now)
            elif _compare(name, now, options.relative):
                failed.append(name)
            print(f"  {_processor_seconds() - before:.0f} s of processor time", flush=True)
    if failed:
        print(f"{len(failed)} of {len(names)} runs differ: {', '.join(failed)}")
    return int(bool(failed))


def _processor_seconds() -> float:
    """Of all processes that this one has started and waited for, and theirs [s]."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
