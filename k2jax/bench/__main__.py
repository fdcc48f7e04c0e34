"""Benchmarks: ratios of medians to a named baseline, interleaved in one process. A ratio above 1 means ours is better.

Example:
    python -m k2jax.bench pretrain      # one training step of nano against transformers + torch (extra [parity])
    python -m k2jax.bench experts       # routed experts against lax.ragged_dot and a dense batched matmul
    python -m k2jax.bench muon          # the Muon update against optax.contrib.muon, on nano's weights
    python -m k2jax.bench attention     # MLA attention against dense scores; the cost of the maximum logit in a step
    python -m k2jax.bench kernels       # every kernel against the operations that it replaces
    python -m k2jax.bench decode        # nano's generation against transformers, batch 1, 16, 64 (extra [parity])
    python -m k2jax.bench constrained   # a token under a grammar beside a free one, SmolLM2's sizes (extra [smol])
    python -m k2jax.bench evaluate      # answers and likelihoods beside lm-eval's hf, see $LM_EVAL_PYTHON
    python -m k2jax.bench context       # a decoded token in engines of longer sequences: 256, 4,096 and 32,768 tokens
    python -m k2jax.bench serving       # SmolLM2 behind the server against transformers, 1 and 16 streams
    python -m k2jax.bench start         # a server's first token and a trainer's first step, second start against first
    python -m k2jax.bench collectives   # bytes that Muon's update sends between chips, against optax (extra [tpu])
    python -m k2jax.bench integrity     # what checking checkpoints and a corpus costs
    python -m k2jax.bench data_reads    # batches from shards in a store against a local disk (moto[server], s3fs)
    python -m k2jax.bench sync          # weights from the trainer to the engine and to the store, against plain copies
    python -m k2jax.bench broadcast     # weights to processes over loopback, against a plain socket and a copy
    python -m k2jax.bench rl            # rollouts of the loop against transformers, and an iteration's phases
    python -m k2jax.bench tree          # rows of trees against every path by itself: gradients, and an iteration
    python -m k2jax.bench sandbox       # cold starts against bare bubblewrap, tool calls over 3,000 live sandboxes
    python -m k2jax.bench images        # sandboxes on an image of 1 GiB: starts, a thousand of them, fresh overlays
    python -m k2jax.bench rollout       # 100,000 concurrent episodes at a simulated engine: how late the scheduler is
    python -m k2jax.bench asynchronous  # the sampler that waits for no tool beside lockstep, in the real loop
    python -m k2jax.bench asynchronous_scale  # 10,000 live episodes around the real loop: how late its event loop is
    python -m k2jax.bench followers     # the command of an engine's step between two processes, modelled for 256 hosts
    python -m k2jax.bench separate      # engines of their own beside the update, against rollouts and update in turn
    python -m k2jax.bench swarm         # 32 assignments of one answer beside the longest; 1,000 orchestrators at a time
    python -m k2jax.bench routing       # cost of a sample: cached prefixes and streaming, round-robin and whole batches
    python -m k2jax.bench instances     # engines of orchestrators and sub-agents: a ratio by load against fixed ones
    python -m k2jax.bench gateway       # processor time of an agent's request, beside the engine's own
    python -m k2jax.bench dep           # the decoupled encoder against the tower in stage 0, and a step with images
    python -m k2jax.bench vision        # the tower, forward and backward, against transformers (extra [parity])
    python -m k2jax.bench tools         # a stored repository of 20,000 tools: opened, searched, and a domain's drawn
    python -m k2jax.bench data          # a corpus tokenised by two processes, one, datasets.map and Ray
    python -m k2jax.bench muon --json   # a list of objects: name, ours, baseline, ratio, unit, device, baseline_name
"""

from importlib import import_module
import json
import sys

from absl import flags

from k2jax import cli, runtime
from k2jax.errors import UserError, nearest
from k2jax.report.table import significant, text_table

NAMES = (
    "pretrain",
    "experts",
    "muon",
    "attention",
    "decode",
    "constrained",
    "evaluate",
    "context",
    "serving",
    "start",
    "kernels",
    "collectives",
    "integrity",
    "data_reads",
    "sync",
    "broadcast",
    "rl",
    "tree",
    "sandbox",
    "images",
    "gateway",
    "rollout",
    "routing",
    "instances",
    "asynchronous",
    "asynchronous_scale",
    "followers",
    "separate",
    "swarm",
    "dep",
    "vision",
    "tools",
    "data",
)


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    flags.DEFINE_bool("json", False, "Print a JSON list instead of a table.", flag_values=values)
    flags.DEFINE_integer("rounds", 10, "Timed runs of each candidate.", lower_bound=1, flag_values=values)


def main(values: flags.FlagValues, name: str) -> None:
    """Runs the command."""
    if name not in NAMES:
        raise UserError(f"no benchmark {name!r}{nearest(name, list(NAMES))}")
    runtime.prepare()
    rows = import_module(f"k2jax.bench.{name}").measure(values.rounds)
    if values.json:
        print(json.dumps([vars(row) for row in rows], indent=2))
        return
    cells = [
        (row.name, row.baseline_name, f"{significant(row.ours)} {row.unit}", f"{significant(row.baseline)} {row.unit}",
         f"{row.ratio:.2f}")
        for row in rows
    ]  # fmt: skip
    print(text_table(("benchmark", "baseline", "ours", "theirs", "ratio"), cells))
    method = "nothing was timed" if rows[0].unit == "MB" else f"medians of {values.rounds} interleaved rounds"
    print(f"on {rows[0].device}, jax {sys.modules['jax'].__version__}, {method}")


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("NAME",))
