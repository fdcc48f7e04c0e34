"""One of several processes that join and do next to nothing, for the tests: ``python -m tests.train.member WHAT``."""

from pathlib import Path
import sys
import time

import numpy as np

from k2jax import processes
from k2jax.errors import UserError
from k2jax.processes.group import _FIRST, Group
from k2jax.processes.membership import current_group

SHAPES = {"matrix": (1024, 1024), "stack": (6, 512, 512), "copied": (1024, 1024), "vector": (4096,), "odd": (37, 33)}
CUT = {"matrix": ("d",), "stack": (None, "d"), "copied": (), "vector": (), "odd": ()}
"""Parts of the axis that every device has one of."""


def values() -> dict[str, np.ndarray]:
    """What the checkpoint of these tests holds; 12 MB."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def _main() -> int:
    what, here = sys.argv[1], processes.index()
    if what == "barrier" and here == 0:
        processes.barrier("data", 2)
    if what == "mistake" and here == 1:
        raise UserError("no such file")
    if what == "bug" and here == 1:
        raise KeyboardInterrupt
    if what == "broadcast":
        texts = [processes.broadcast_from_first(f"texts/{turn}", f"{turn} of {here}") for turn in range(3)]
        processes.barrier("read", 20)
        print(texts, current_group()._client.key_value_dir_get(_FIRST), flush=True)
    elif what == "load":
        _load(Path(sys.argv[2]))
    elif what != "end":
        print("joined", flush=True)
        time.sleep(100)
    return 7


def _load(workdir: Path) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from k2jax.checkpoint import Checkpoints

    mesh, expected = Mesh(np.array(jax.devices()), ("d",)), values()
    wanted = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec(*CUT[name])))
        for name, x in expected.items()
    }
    checkpoints = Checkpoints(workdir, read_only=True)
    before = _bytes_read()
    params, (moments,) = checkpoints.restore(1, wanted, [wanted])
    read = _bytes_read() - before
    for tree in (params, moments):
        for name, x in tree.items():
            assert x.sharding.is_equivalent_to(wanted[name].sharding, x.ndim), name
            for shard in x.addressable_shards:
                np.testing.assert_array_equal(shard.data, expected[name][shard.index], name)
    print("read", read, flush=True)


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


if __name__ == "__main__":
    if sys.argv[1] == "unwatched":  # only jax itself notices the coordinator's end
        Group._watch_verdict = Group._watch_peers = lambda self: None
    processes.start(60)
    sys.exit(processes.run_and_exit(_main))
