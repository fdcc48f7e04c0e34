"""Weights from the trainer to the engine, and to the store of the checkpoint engine, against plain copies.

Both sides of a row move the same bytes of a model of more than 200 MB in float32. A push casts, reshards, copies and
computes two checksums, of what was sent and of what arrived; the plain copy reads and writes every array once.
Publishing computes a checksum of every file; the plain side writes the same files.
"""

from __future__ import annotations

from pathlib import Path
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.bench.timing import Row, interleaved, rate_row
from k2jax.config import Config, defaults, resolve
from k2jax.config.schema import RolloutConfig
from k2jax.rl.sync.checkpoint_engine import SHARED_MEMORY, CheckpointEngine
from k2jax.rl.sync.weight_sync import WeightSync, colocated_engine
from k2jax.train.program import Program


def measure(rounds: int = 10) -> list[Row]:
    """Two rows, of a push and of publishing."""
    program = Program(_config())
    params = program.init().params  # not the optimizer's state
    engine = colocated_engine(program, RolloutConfig(slots=program.mesh.size, expert=1, data=program.mesh.size))
    sync = WeightSync(program, engine)
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    seconds = interleaved({"push": lambda: sync.push(params, 1), "copy": lambda: copy(params)}, rounds)
    size = sync.bytes / 1e9
    rates = {name: size / time for name, time in seconds.items()}
    what = f"{size * 1e3:.0f} MB in {len(sync.buckets)} buckets"
    pushed = rate_row(f"push {what}", rates["push"], rates["copy"], "GB/s", "plain copy")
    return [pushed, _publish_row(engine.weights.leaves, what, size, rounds)]


def _publish_row(leaves, what: str, size: float, rounds: int) -> Row:
    root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="k2jax-bench-", dir=root) as folder:
        plain = Path(folder) / "plain"
        plain.mkdir()
        store = CheckpointEngine(Path(folder) / "store")

        def write() -> None:
            for i, (_, leaf) in enumerate(leaves()):
                (plain / str(i)).write_bytes(np.asarray(leaf).reshape(-1).view(np.uint8))

        seconds = interleaved({"publish": lambda: store.publish(leaves(), 1), "write": write}, rounds)
        store.remove()
    rates = {name: size / time for name, time in seconds.items()}
    return rate_row(f"publish {what}", rates["publish"], rates["write"], "GB/s", "plain files")


def _config() -> Config:
    config = defaults("pretrain", model="nano")
    config.model.update({"layers": 6, "d_model": 512, "dense_ffn": 2048, "vocab": 16384})
    config.model.moe.update({"experts": 32})
    config.train.batch_size = max(config.train.batch_size, jax.device_count())
    config.parallel.data = jax.device_count()
    return resolve(config)
