"""What grows how: costs of training, generation, episodes and data at several sizes, with fitted exponents and bends.

Example:
    python -m k2jax.bench.curves --workdir=runs/curves                 # every curve; points that are there are kept
    python -m k2jax.bench.curves documents --workdir=runs/curves       # one of them
    python -m k2jax.bench.curves documents --at=20000                  # one point of it, which is printed

Every point is measured in a process of its own, and kept in ``WORKDIR/points.jsonl``. ``WORKDIR/curves.md`` and
``curves.png`` have the exponents: the slope of log cost over log size, and two where a bend explains the points better.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
import sys

from absl import flags

from k2jax import cli, runtime
from k2jax.bench.curves.curves import CURVES, curve_of
from k2jax.bench.curves.page import Points, draw, table
from k2jax.errors import UserError
from k2jax.report.table import significant

_POINTS = "points.jsonl"


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_integer("at", 0, "Measure this size alone, in this process, and print its cost.", **to)
    flags.DEFINE_integer("rounds", 5, "Steps of which the median counts.", lower_bound=1, **to)
    flags.DEFINE_string("workdir", None, "Folder of the points and the page.", **to)


def main(values: flags.FlagValues, name: str = "") -> None:
    """Runs the command."""
    if values.at:
        runtime.prepare()
        print(json.dumps({"cost": curve_of(name).measure(values.at, values.rounds)}))
        return
    cli.require(values, "workdir")
    folder = Path(values.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    points = _read(folder / _POINTS)
    for each in [name] if name else CURVES:
        curve = curve_of(each)
        for size in curve.sizes:
            if size in points.get(each, {}):
                continue
            cost = _measured(each, size, curve.devices(size), values.rounds)
            points.setdefault(each, {})[size] = cost
            with open(folder / _POINTS, "a") as file:
                file.write(json.dumps({"curve": each, "size": size, "cost": cost}) + "\n")
            print(f"{each}: {size:,} {curve.size}: {significant(cost)} {curve.cost}", flush=True)
    (folder / "curves.md").write_text(table(points))
    draw(points, folder / "curves.png")
    print(table(points))


def _measured(name: str, size: int, devices: int, rounds: int) -> float:
    """The cost of a point, measured by a process of its own."""
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-m", "k2jax.bench.curves", name, f"--at={size}", f"--rounds={rounds}"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"the point {size:,} of {name} failed; see the lines above")
    return json.loads(done.stdout.splitlines()[-1])["cost"]


def _read(path: Path) -> Points:
    points: Points = {}
    if path.exists():
        for line in path.read_text().splitlines():
            point = json.loads(line)
            points.setdefault(point["curve"], {})[point["size"]] = point["cost"]
    return points


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("NAME",), optional=1)
