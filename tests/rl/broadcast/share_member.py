"""``python -m tests.rl.broadcast.share_member FOLDER``: a process of a run and of an engine, for the tests.

It publishes the shards of its device, gives them to others and starts an engine from those of all processes. For each
version it prints a line of JSON.
"""

import json
from pathlib import Path
import sys
import time

import jax

from k2jax import processes
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.weights import EngineWeights
from k2jax.rl.broadcast import shares
from k2jax.rl.broadcast.received_weights import ReceivedWeights
from k2jax.rl.broadcast.store_source import StoreSource
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from tests.inference.tiny import MLA, weights
from tests.rl.broadcast.sources import ANYWHERE, KEY


def _main() -> int:
    folder, mesh, here = Path(sys.argv[1]), make_engine_mesh(1, 2), processes.index()
    store = CheckpointEngine(folder / str(here), keeps_before=True)
    giving = StoreSource(store.folder, ANYWHERE, KEY, print, keeps_before=True)
    (folder / f"port-{here}").write_text(str(giving.server.address[1]))
    processes.barrier("listening")
    addresses = [("127.0.0.1", int((folder / f"port-{index}").read_text())) for index in range(2)]
    engine = EngineWeights(weights(MLA, 0), MLA, mesh)
    receiver = ReceivedWeights(addresses, KEY, engine, print)
    planned, plan_of = [], shares.plan_of
    sys.modules[ReceivedWeights.__module__].plan_of = lambda *values: planned.append(plan_of(*values)) or planned[-1]
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(weights(MLA, 0)))
    for version in (1, 2):
        held = EngineWeights(weights(MLA, version), MLA, mesh)
        time.sleep(0.2 * here)  # one is late
        store.publish(held.leaves(), version)
        while receiver.current() in (None, receiver.loaded):
            time.sleep(0.01)
        number, leaves = receiver.load()
        engine.update(engine.check(leaves))
        taken = sum(end - begin for spans in planned[-1].spans for _, begin, end in spans)
        equal = engine.checksums() == held.checksums()
        print(json.dumps({"version": number, "equal": equal, "bytes": taken, "whole": whole}), flush=True)
        processes.barrier(f"read {version}")
    receiver.close()
    processes.barrier("closed")
    giving.close()
    return 0


if __name__ == "__main__":
    processes.start(60)
    sys.exit(processes.run_and_exit(_main))
