"""``python -m tests.rl.sync.store_member FOLDER``: one of the processes of an engine, with a store of its own.

For the tests it publishes versions and starts engines from them, and prints a line of JSON for each.
"""

import json
from pathlib import Path
import sys

import jax

from k2jax import processes
from k2jax.errors import UserError
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.weights import EngineWeights
from k2jax.rl.sync import stored_weights
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from k2jax.rl.sync.stored_weights import load_together
from tests.inference.tiny import MLA, weights


def _main() -> int:
    mesh, here = make_engine_mesh(1, 2), processes.index()
    store = CheckpointEngine(Path(sys.argv[1]) / str(here), keeps_before=True)
    held = {version: EngineWeights(weights(MLA, version), MLA, mesh) for version in (1, 2, 3)}
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(weights(MLA, 0)))

    def start(bytes_written: int) -> None:
        engine = EngineWeights(weights(MLA, 0), MLA, mesh)
        version, leaves = load_together(store.folder, engine.target)
        engine.update(engine.check(leaves))
        equal = engine.checksums() == held[version].checksums()
        print(json.dumps({"version": version, "equal": equal, "bytes": bytes_written, "whole": whole}), flush=True)

    for version in (1, 2):
        stats = store.publish(held[version].leaves(), version)
        start(stats.bytes)
    if here == 0:
        store.publish(held[3].leaves(), 3)
    start(stats.bytes)
    if here == 1:
        store.publish(held[3].leaves(), 3)
    start(stats.bytes)
    processes.barrier("read")
    for version in (8, 9) if here == 0 else (7,):
        store.publish(held[1].leaves(), version)
    stored_weights.CHANGE_SECONDS = 0.1
    try:
        start(0)
    except UserError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
    return 0


if __name__ == "__main__":
    processes.start(60)
    sys.exit(processes.run_and_exit(_main))
