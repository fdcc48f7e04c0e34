"""Compiles for TPUs ahead of time, on a machine without one; exit code 1 if something does not fit.

Example:
    python -m k2jax.aot kernels --topologies=v5e:2x2,v5p:2x2x1,v6e:2x2,tpu7x:2x2x1
    python -m k2jax.aot kernels --topologies=v5p:2x2x1 --only=attention --json

Every kernel is compiled at the shapes of Kimi K2. The roofline is the least time that one device could need: FLOPs at
peak, or bytes at full bandwidth, whichever takes longer. It is arithmetic, not a measurement.
"""

import json
import sys

from absl import flags

from k2jax import cli
from k2jax.analysis import topology
from k2jax.config.build import nearest
from k2jax.errors import UserError
from k2jax.report.table import significant, text_table

TARGETS = ("kernels",)
DOES_NOT_FIT = 1


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_list("topologies", ["v5p:2x2x1"], "TPU topologies, such as v5e:2x2 or v5p:2x2x1.", **to)
    flags.DEFINE_string("only", "", "Only kernels whose name contains this.", **to)
    flags.DEFINE_bool("json", False, "Print a JSON list instead of a table.", **to)


def main(values: flags.FlagValues, target: str) -> int:
    """Runs the command."""
    if target not in TARGETS:
        raise UserError(f"nothing to compile called {target!r}{nearest(target, list(TARGETS))}")
    if not values.topologies:
        raise UserError("--topologies is empty; name some, such as v5e:2x2,v5p:2x2x1")
    topology.prepare()
    from k2jax.analysis.kernels import compile_all

    found = []
    for one in compile_all(values.topologies, values.only):
        found.append(one)
        print(f"compiled {len(found)}: {one.kernel}, {one.direction}, {one.topology}", file=sys.stderr)
    if not found:
        raise UserError(f"no kernel's name contains {values.only!r}")
    if values.json:
        print(json.dumps([one._asdict() for one in found], indent=2))
    else:
        print(table(found))
    return 0 if all(one.fits for one in found) else DOES_NOT_FIT


def table(found: list) -> str:
    """A block for each kernel, direction and shape, a line for each topology."""
    header = (
        "topology",
        "VMEM MiB",
        "of",
        "HBM temp MB",
        "in all",
        "GFLOP",
        "MB",
        "roofline ms",
        "bound",
        "compiled in s",
    )
    blocks: dict[str, list] = {}
    for one in found:
        blocks.setdefault(f"{one.kernel}, {one.direction}: {one.shape}", []).append(
            (
                one.topology,
                significant(one.vmem_bytes / 2**20),
                one.vmem_limit_bytes >> 20,
                significant(one.temp_bytes / 1e6),
                significant(one.hbm_bytes / 1e6),
                significant(one.flops / 1e9),
                significant(one.bytes / 1e6),
                significant(1e3 * one.roofline_seconds),
                one.bound,
                significant(one.compile_seconds),
            )
        )
    return "\n\n".join(f"{title}\n{text_table(header, rows)}" for title, rows in blocks.items())


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("TARGET",))
