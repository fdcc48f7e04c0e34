"""Compiles for TPUs ahead of time, on a machine without one; exit code 1 if something does not fit.

Example:
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16 --sweep
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:4x4x4 --mode=decode \
        --config.parallel.expert=64
    python -m k2jax.aot kernels --topologies=v5e:2x2,v5p:2x2x1,v6e:2x2,tpu7x:2x2x1
    python -m k2jax.aot kernels --topologies=v5p:2x2x1 --only=attention --json

With a config, the training step that it describes: HBM of a device by what it holds, collectives by kind, axis and
bytes, FLOPs, and an estimate of its time with every term. --sweep estimates every layout (stages, experts, data,
micro-batches, recomputation) of that batch on the topology and compiles the best; those of them that do not fit are
named, and only if all do not the exit code is 1. --mode=prefill and --mode=decode compile the inference engine's
programs for the config's model instead, with experts over config.parallel.expert devices and as many sequences of
--context tokens as fit. With "kernels", every kernel at the shapes of Kimi K2; there the roofline is the least time
that one device could need. All times are arithmetic: nothing was run.
"""

import json
import sys

from absl import flags

from k2jax import cli
from k2jax.analysis import topology
from k2jax.config.build import nearest
from k2jax.errors import UserError

TARGETS = ("kernels",)
MODES = ("train", "prefill", "decode")
DOES_NOT_FIT = 1
LISTED = 12  # layouts of a sweep that are printed


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    cli.define_config(values)
    flags.DEFINE_string("topology", None, "TPU topology of a training config, such as v5p:8x8x16.", **to)
    flags.DEFINE_string("mode", "train", "What of a config to compile: train | prefill | decode.", **to)
    flags.DEFINE_integer("context", 32768, "Longest sequence of prefill and decode [tokens].", **to, lower_bound=1)
    flags.DEFINE_integer("slots", 0, "Sequences of prefill and decode; 0 is as many as fit.", **to, lower_bound=0)
    flags.DEFINE_bool("sweep", False, "Estimate every layout of the config, and compile the best.", **to)
    flags.DEFINE_integer("best", 2, "How many layouts of a sweep to compile.", **to)
    flags.DEFINE_list("topologies", ["v5p:2x2x1"], "TPU topologies for kernels, such as v5e:2x2,v5p:2x2x1.", **to)
    flags.DEFINE_string("only", "", "Only kernels whose name contains this.", **to)
    flags.DEFINE_bool("json", False, "Print JSON instead of tables.", **to)


def main(values: flags.FlagValues, target: str = "") -> int:
    """Runs the command."""
    if target and target not in TARGETS:
        raise UserError(f"nothing to compile called {target!r}{nearest(target, list(TARGETS))}")
    if values.mode not in MODES:
        raise UserError(f"no mode {values.mode!r}{nearest(values.mode, list(MODES))}")
    topology.prepare()
    return kernels(values) if target else training(values) if values.mode == "train" else inference(values)


def inference(values: flags.FlagValues) -> int:
    """A program of the inference engine for a config's model."""
    cli.require(values, "config", "topology")
    if values.sweep:
        raise UserError("--sweep is for --mode=train; for inference try values of --config.parallel.expert")
    from k2jax.analysis import compiling, tables

    config = compiling.for_tpu(cli.config_of(values))
    try:
        found = compiling.compile_inference(config, values.mode, values.topology, values.context, values.slots)
    except compiling.DoesNotFit as error:
        return _does_not_fit(compiling.inference_too_large(values.mode, error.needs))
    print(json.dumps(tables.as_json(found), indent=2) if values.json else tables.serving_table(found))
    return 0 if found.hbm.fits else _does_not_fit(compiling.inference_too_large(values.mode, found.hbm.needs))


def training(values: flags.FlagValues) -> int:
    """A config's training step, or its layouts."""
    cli.require(values, "config", "topology")
    from k2jax.analysis import compiling, tables
    from k2jax.analysis.published import published_runs

    config = compiling.for_tpu(cli.config_of(values))
    best = compiling.best_layouts(config, values.topology) if values.sweep else []
    if best and not values.json:
        print(tables.sweep_table(best, LISTED), flush=True)
    chosen = [(one.config, one.flags) for one in best[: values.best]] if best else [(config, "")]
    found, large = [], []
    for one, title in chosen:
        report, needs = compiling.attempt_training(one, values.topology)
        if needs:
            large.append(f"{title} does not fit: it needs {needs}" if best else needs)
        if report is None:
            continue
        found.append(report)
        if not values.json:
            print(f"\n{title}\n" if best else "", end="")
            print(tables.training_table(report, published_runs()), flush=True)
    if values.json:
        listed = {"layouts": tables.as_json(best), "compiled": tables.as_json(found)}
        print(json.dumps({**listed, "published": tables.as_json(published_runs())}, indent=2))
    if large and not best:
        return _does_not_fit(compiling.too_large(config, values.topology, large[0]))
    print("".join(f"{line}\n" for line in large), end="", file=sys.stderr)
    if large and len(large) == len(chosen):
        return _does_not_fit(f"of {len(best)} layouts none of the {len(large)} compiled ones fits; raise --best")
    return 0


def _does_not_fit(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return DOES_NOT_FIT


def kernels(values: flags.FlagValues) -> int:
    """Every kernel."""
    if not values.topologies:
        raise UserError("--topologies is empty; name some, such as v5e:2x2,v5p:2x2x1")
    from k2jax.analysis.kernels import compile_all
    from k2jax.analysis.tables import kernel_table

    found = []
    for one in compile_all(values.topologies, values.only):
        found.append(one)
        print(f"compiled {len(found)}: {one.kernel}, {one.direction}, {one.topology}", file=sys.stderr)
    if not found:
        raise UserError(f"no kernel's name contains {values.only!r}")
    print(json.dumps([one._asdict() for one in found], indent=2) if values.json else kernel_table(found))
    return 0 if all(one.fits for one in found) else DOES_NOT_FIT


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("TARGET",), optional=1)
