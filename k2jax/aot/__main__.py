r"""Compiles for TPUs ahead of time, on a machine without one; exit code 1 if something does not fit.

Example:
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16 --phase=long
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16 --sweep
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16 --residuals
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:4x4x4 --mode=decode \
        --config.parallel.expert=64
    python -m k2jax.aot --config=experiments/rl/k2_1t.py --topology=v5p:8x8x16 --mode=sync
    python -m k2jax.aot --config=experiments/rl/k2_1t.py --topology=v5p:8x8x16 --mode=restart --workers=32
    python -m k2jax.aot kernels --topologies=v5e:2x2,v5p:2x2x1,v6e:2x2,tpu7x:2x2x1
    python -m k2jax.aot kernels --topologies=v5p:2x2x1 --only=attention --json

With a config, the command compiles the training step that it describes and prints HBM of a device by what it holds,
collectives by kind, axis and bytes, FLOPs, and an estimate of the step's time with every term: of a run with phases the
step of --phase, or of the one with most tokens. --sweep estimates every
layout of that batch on the topology (stages, experts, data, micro-batches, parts of the experts' exchange, and
recomputation with FP8 and offloading) and compiles the best; it names those that do not fit, and exits with 1 only if
none fits. --residuals compiles nothing: it prints what residuals of a pipeline's chunks would take in all live slots,
and what keeping them would spare the backward. --mode=prefill and --mode=decode compile the inference engine's programs
for the config's model instead, with experts over config.parallel.expert devices and as many sequences of --context
tokens as fit. --mode=sync compiles what an iteration of reinforcement learning runs on one slice: the training step,
the programs that bring its weights to the engine of config.rl.rollout, prefill and decode, also of the engines of
config.rl.roles, with the policy's architecture; it prints HBM in each phase, and bytes and time of the switch.
--mode=restart compiles nothing: it prints by formulas what the loss of a host costs, of the trainer, of an engine and
of a pool of workers, with every constant. With "kernels", it compiles every kernel at the shapes of Kimi K2; there the
roofline is the least time that one device could need. All times are arithmetic: nothing is run.
"""

import dataclasses
import json
import sys

from absl import flags

from k2jax import cli
from k2jax.aot import topology
from k2jax.config.phases import RunPhase, phase_named, run_phases
from k2jax.config.schema import Config
from k2jax.errors import UserError, nearest

TARGETS = ("kernels",)
MODES = ("train", "prefill", "decode", "sync", "restart")
DOES_NOT_FIT = 1
LISTED = 12  # layouts of a sweep that are printed


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    cli.define_config(values)
    flags.DEFINE_string("topology", None, "TPU topology of a training config, such as v5p:8x8x16.", **to)
    flags.DEFINE_string("mode", "train", f"What to compile: {' | '.join(MODES)}.", **to)
    flags.DEFINE_integer("context", 32768, "Longest sequence of prefill and decode [tokens].", **to, lower_bound=1)
    flags.DEFINE_integer("slots", 0, "Sequences of prefill and decode; 0 is as many as fit.", **to, lower_bound=0)
    flags.DEFINE_string("phase", "", "Phase of the config; empty is the one with most tokens.", **to)
    flags.DEFINE_bool("sweep", False, "Estimate every layout of the config, and compile the best.", **to)
    flags.DEFINE_bool("residuals", False, "Print what a pipeline's chunks could keep; compile nothing.", **to)
    flags.DEFINE_float("taken_gb", 0.0, "HBM of the compiled step, for --residuals; 0 is by formulas.", **to)
    flags.DEFINE_float("step_seconds", 0.0, "Time of the compiled step, for --residuals; 0 is by formulas.", **to)
    flags.DEFINE_integer("best", 2, "Number of a sweep's layouts to compile.", **to)
    flags.DEFINE_integer("engines", 0, "Separate engines, for --mode=restart.", **to, lower_bound=0)
    flags.DEFINE_string("engine_topology", "v5p:4x4x4", "TPU topology of each separate engine.", **to)
    flags.DEFINE_integer("workers", 0, "Machines that run episodes, for --mode=restart.", **to, lower_bound=0)
    flags.DEFINE_float("rollout_seconds", 0.0, "Time of an iteration beside its training, for --mode=restart.", **to)
    flags.DEFINE_multi_string("assume", [], "NAME=VALUE of a constant of --mode=restart; can be repeated.", **to)
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
    if target:
        return kernels(values)
    return {"train": training, "sync": phases, "restart": restart}.get(values.mode, inference)(values)


def restart(values: flags.FlagValues) -> int:
    """Prints what the loss of a host costs a config's run; compiles nothing."""
    cli.require(values, "config", "topology")
    if values.sweep:
        raise UserError("--sweep is for --mode=train, not for --mode=restart")
    from k2jax.aot import compiling
    from k2jax.aot.cost.host_loss import with_assumptions
    from k2jax.aot.cost.run_shape import EngineSlices, run_shape
    from k2jax.aot.report.loss_table import loss_json, loss_table

    constants = with_assumptions(values.assume)
    engines = EngineSlices(values.engines, values.engine_topology)
    config = compiling.for_tpu(chosen_phase(cli.config_of(values), values.phase).config)
    shape = run_shape(config, values.topology, engines, values.workers, values.rollout_seconds)
    arguments = (values.topology, shape, constants)
    print(json.dumps(loss_json(*arguments), indent=2) if values.json else loss_table(*arguments))
    return 0


def phases(values: flags.FlagValues) -> int:
    """Compiles the programs of an iteration of reinforcement learning."""
    cli.require(values, "config", "topology")
    if values.sweep:
        raise UserError("--sweep is for --mode=train; for --mode=sync try values of --config.rl.rollout.expert")
    from k2jax.aot import compiling
    from k2jax.aot.report.sync_table import phases_json, phases_table
    from k2jax.aot.weight_sync import compile_phases

    config = compiling.for_tpu(chosen_phase(cli.config_of(values), values.phase).config)
    try:
        report = compile_phases(config, values.topology)
    except compiling.DoesNotFit as error:
        return _does_not_fit(f"a program needs {error.needs}; --mode=train, prefill and decode say which")
    print(json.dumps(phases_json(report), indent=2) if values.json else phases_table(report))
    large = [f"{phase} needs {hbm.needs}" for phase, hbm in report.memory().items() if not hbm.fits]
    return _does_not_fit("; ".join(large)) if large else 0


def inference(values: flags.FlagValues) -> int:
    """Compiles a program of the inference engine for a config's model."""
    cli.require(values, "config", "topology")
    if values.sweep:
        raise UserError("--sweep is for --mode=train; for inference try values of --config.parallel.expert")
    from k2jax.aot import compiling
    from k2jax.aot.report import tables

    config = compiling.for_tpu(chosen_phase(cli.config_of(values), values.phase).config)
    try:
        report = compiling.compile_inference(config, values.mode, values.topology, values.context, values.slots)
    except compiling.DoesNotFit as error:
        return _does_not_fit(compiling.inference_too_large(values.mode, error.needs))
    print(json.dumps(tables.as_json(report), indent=2) if values.json else tables.serving_table(report))
    return 0 if report.hbm.fits else _does_not_fit(compiling.inference_too_large(values.mode, report.hbm.needs))


def training(values: flags.FlagValues) -> int:
    """Compiles a config's training step, or the best of its layouts."""
    cli.require(values, "config", "topology")
    from k2jax.aot import compiling
    from k2jax.aot.cost.published import published_runs
    from k2jax.aot.report import tables

    phase = chosen_phase(cli.config_of(values), values.phase)
    config = compiling.for_tpu(phase.config)
    if values.residuals:
        return residuals(values, config)
    if values.taken_gb or values.step_seconds:
        raise UserError("--taken_gb and --step_seconds are of --residuals; other analyses find both out")
    if phase.name and not values.json:
        print(f"phase {phase.name}, steps {phase.first + 1:,} to {phase.last:,}", flush=True)
    layouts = compiling.best_layouts(config, values.topology) if values.sweep else []
    if layouts and not values.json:
        print(tables.sweep_table(layouts, LISTED), flush=True)
    best = layouts[: values.best]
    chosen = [(layout.config, layout.flags) for layout in best] if layouts else [(config, "")]
    reports, too_large = [], []
    for layout, title in chosen:
        report, needs = compiling.attempt_training(layout, values.topology)
        if needs:
            too_large.append(f"{title} does not fit: it needs {needs}" if layouts else needs)
        if report is None:
            continue
        reports.append(report)
        if not values.json:
            print(f"\n{title}\n" if layouts else "", end="")
            print(tables.training_table(report, published_runs()), flush=True)
    if values.json:
        listed = {"layouts": tables.as_json(layouts), "compiled": tables.as_json(reports)}
        print(json.dumps({**listed, "published": tables.as_json(published_runs())}, indent=2))
    if too_large and not layouts:
        return _does_not_fit(compiling.too_large(config, values.topology, too_large[0]))
    print("".join(f"{line}\n" for line in too_large), end="", file=sys.stderr)
    if too_large and len(too_large) == len(chosen):
        return _does_not_fit(f"of {len(layouts)} layouts none of the {len(too_large)} compiled ones fits; raise --best")
    return 0


def residuals(values: flags.FlagValues, config: Config) -> int:
    """Prints what chunks of a pipeline could keep; compiles nothing."""
    if values.sweep:
        raise UserError("--residuals is of one layout; leave out --sweep")
    from k2jax.aot.cost.estimate import Estimator, place
    from k2jax.aot.report.residual_table import StepTaken, residual_json, residual_table

    # What the step keeps now is among what it could keep.
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, keep_across=()))
    placement = place(config, topology.chip_of(values.topology), topology.devices(values.topology))
    estimate = Estimator(config, placement).estimate()
    taken = values.taken_gb * 1e9 or estimate.hbm.total
    step = StepTaken(values.topology, taken, values.step_seconds or estimate.roofline.seconds, estimate, placement)
    print(json.dumps(residual_json(config, step), indent=2) if values.json else residual_table(config, step))
    return 0


def chosen_phase(config: Config, name: str) -> RunPhase:
    """The named phase of a config, or the one with most tokens: all of it where it has no phases.

    Raises:
        UserError: it has no phase of that name.
    """
    return phase_named(config, name) if name else max(run_phases(config), key=lambda phase: phase.tokens)


def _does_not_fit(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return DOES_NOT_FIT


def kernels(values: flags.FlagValues) -> int:
    """Compiles every kernel."""
    if not values.topologies:
        raise UserError("--topologies is empty; name some, such as v5e:2x2,v5p:2x2x1")
    from k2jax.aot.kernels import compile_all
    from k2jax.aot.report.expert_parts import expert_parts_table
    from k2jax.aot.report.tables import kernel_table

    compiled = []
    for kernel in compile_all(values.topologies, values.only):
        compiled.append(kernel)
        print(f"compiled {len(compiled)}: {kernel.kernel}, {kernel.direction}, {kernel.topology}", file=sys.stderr)
    if not compiled:
        raise UserError(f"no kernel's name contains {values.only!r}")
    if values.json:
        print(json.dumps([vars(kernel) for kernel in compiled], indent=2))
    else:
        print(kernel_table(compiled))
        if any(kernel.kernel == "routed_experts" for kernel in compiled):
            print(f"\n{expert_parts_table(values.topologies)}")
    return 0 if all(kernel.fits for kernel in compiled) else DOES_NOT_FIT


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("TARGET",), optional=1)
