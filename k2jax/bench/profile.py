"""Time of the parts of a training step of nano on a CPU, from a trace of XLA's operations.

Every instant counts once: where two operations overlap, each gets half of the time. Tracing slows a step down, so that
the shares are meaningful, not the milliseconds. XLA fuses adjacent operations, which blurs the boundaries of parts.

Example:
    python -m k2jax.bench.profile
    python -m k2jax.bench.profile --optimizer=muonclip
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
import re
import tempfile
from typing import NamedTuple, get_args

from absl import flags

from k2jax import cli, runtime
from k2jax.config.schema import OptimizerName
from k2jax.report.table import percent, text_table

PARTS = (  # named scopes of the model and the step; an operation belongs to the innermost
    "mla_projections",
    "gqa_projections",
    "attention",
    "router",
    "routed_experts",
    "shared_experts",
    "dense_ffn",
    "head",
    "optimizer",
)
REST = "rest"  # norms, embedding, and copies of weights and activations for the scan over layers
IDLE = "between operations"
STEPS = 5


class Span(NamedTuple):
    """One run of an operation.

    Attributes:
        start: time of its start [ns].
        end: time of its end [ns].
        thread: name of the thread.
        operation: name of the operation.
    """

    start: float
    end: float
    thread: str
    operation: str


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    flags.DEFINE_enum("optimizer", "adamw", get_args(OptimizerName), "Optimizer of the step.", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    runtime.prepare()
    spans, program = trace_step(values.optimizer)
    parts = parts_of(program)
    total, table = 0.0, defaultdict(lambda: [0.0, 0.0])
    for operation, time in busy_time(spans).items():
        part, is_product = parts.get(operation, (REST, False)) if operation else (IDLE, False)
        table[part][not is_product] += time
        total += time
    rows = sorted(table.items(), key=lambda item: -sum(item[1]))
    cells = [(part, percent(sum(both) / total), *(percent(time / total) for time in both)) for part, both in rows]
    print(text_table(("part of the step", "share", "matrix products", "other"), cells))
    print(f"nano, {values.optimizer}, 8 x 256 tokens, {total / STEPS / 1e6:.0f} ms a step while traced")


def trace_step(optimizer: str) -> tuple[list[Span], str]:
    """Traces a few training steps of nano; returns the runs of operations and the compiled program's text."""
    import jax
    import numpy as np

    from k2jax.bench.pretrain import ROWS, SEQUENCE, experiment, packed
    from k2jax.config import model_preset
    from k2jax.train.program import Program

    model = model_preset("nano")
    program = Program(experiment(model, optimizer), jax.devices()[:1])
    tokens = np.random.default_rng(0).integers(0, model.vocab, (ROWS, SEQUENCE))
    state, batch = program.init(), program.batch_sharding().put(packed(tokens))
    step = program.step.lower(state, batch).compile()
    for _ in range(2):
        state, metrics = step(state, batch)
    jax.block_until_ready((state, metrics))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                state, metrics = jax.block_until_ready(step(state, batch))
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
        spans = [
            Span(event.start_ns, event.start_ns + event.duration_ns, line.name, event.name)
            for plane in planes
            for line in plane.lines
            for event in line.events
            if "hlo_op" in dict(event.stats)
        ]
    return spans, step.as_text()


def busy_time(spans: Iterable[Span]) -> dict[str, float]:
    """Time of each operation [ns], from the first start to the last end; ``""`` is the time without any operation.

    An operation that contains others on its thread (a loop) counts only while none of them runs on any thread.
    """
    spans = sorted(spans)
    edges = sorted(
        [(span.start, 1, i) for i, span in enumerate(spans)] + [(span.end, 0, i) for i, span in enumerate(spans)]
    )
    times: dict[str, float] = defaultdict(float)
    running: set[int] = set()
    last = edges[0][0] if edges else 0.0
    for time, starts, i in edges:
        if time > last:
            innermost = {spans[j].thread: spans[j].operation for j in sorted(running)}
            leaves = [name for name in innermost.values() if not name.startswith(("while", "call", "conditional"))]
            for name in leaves or [""]:
                times[name] += (time - last) / max(len(leaves), 1)
        (running.add if starts else running.discard)(i)
        last = time
    return dict(times)


def parts_of(program: str) -> Mapping[str, tuple[str, bool]]:
    """Part of the step of each operation, and whether it is a matrix product, from a compiled program's text.

    A fusion that contains products belongs to the part of the last one, any other fusion to that of its last
    instruction.
    """
    computation, products = "", {}  # computation -> part of its last product; callees precede their callers
    parts = {}
    for line in program.splitlines():
        header = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(", line)
        if header:
            computation = header[1]
        instruction = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = \S+ ([\w\-]+)\(", line)
        if not instruction:
            continue
        name, opcode = instruction.groups()
        called = re.search(r"calls=%?([\w.\-]+)", line)
        source = re.search(r'op_name="([^"]*)"', line)
        scopes = re.findall(r"\w+", source[1] if source else "")
        part = next((scope for scope in reversed(scopes) if scope in PARTS), REST)
        if opcode == "dot":
            products[computation] = part
        if called and called[1] in products:
            parts[name] = (products[called[1]], True)
        else:
            parts[name] = (part, opcode == "dot")
    return parts


if __name__ == "__main__":
    cli.run(main, define, __doc__)
