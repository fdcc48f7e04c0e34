"""A small training program with the ingredients of the real one, and every number about it worked out by hand.

Eight devices, ``data 2 x stage 2 x expert 2``: a shard_map that gathers weights, scans over ticks whose body scans over
layers with an exchange each and then sends to the neighbour, branches in some ticks, and scatters gradients; then an
update outside of it, under the scope ``optimizer``.
"""

import functools
from types import SimpleNamespace

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from k2jax.aot import topology

TOPOLOGY = "v5e:2x4"
SHAPE = {"data": 2, "stage": 2, "expert": 2}
TICKS, LAYERS, TOKENS, WIDTH, HIDDEN = 6, 3, 512, 256, 1024
HEAD = 128


def prepare(monkeypatch):
    """Prepares for compiling ahead of time, and takes the environment back after a test."""
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.setenv(name, "")
    topology.prepare()


@functools.cache
def program():
    """Traced, with the fields of a training program."""
    topology.prepare()
    devices = np.array(topology.devices(TOPOLOGY)).reshape(tuple(SHAPE.values()))
    mesh = Mesh(devices, tuple(SHAPE), axis_types=(AxisType.Auto,) * 3)

    def placed(shape, partition, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, partition))

    params = {
        "up": placed((2 * LAYERS, WIDTH, HIDDEN), P("stage", "data")),
        "down": placed((2 * LAYERS, HIDDEN, WIDTH), P("stage", None, "data")),
        "head": placed((WIDTH, HEAD), P()),
    }
    state = SimpleNamespace(params=params)
    momentum = jax.tree.map(lambda x: x, params)
    x = placed((4 * TOKENS, WIDTH), P(("data", "expert")), jnp.bfloat16)
    step = functools.partial(_step, mesh=mesh)
    out = (*(jax.tree.map(lambda x: x.sharding, tree) for tree in (params, momentum)), None)
    traced = jax.jit(step, donate_argnums=(0, 1), out_shardings=out).trace(params, momentum, x)
    state = State(params, momentum)
    return SimpleNamespace(traced=traced, mesh=mesh, state=state, schedule=None, empty=1e6, patches=None)


@jax.tree_util.register_pytree_node_class
class State:
    """Parameters and their momentum."""

    def __init__(self, params, momentum):
        self.params, self.momentum = params, momentum

    def tree_flatten(self):
        return (self.params, self.momentum), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def _step(params, momentum, x, mesh):
    specs = {"up": P("stage", "data"), "down": P("stage", None, "data"), "head": P()}
    mapped = jax.shard_map(
        _local, mesh=mesh, in_specs=(specs, P(("data", "expert"))), out_specs=(specs, P()), check_vma=False
    )
    grads, loss = mapped(params, x)
    with jax.named_scope("optimizer"):
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        square = momentum["head"].T @ momentum["head"]
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
        params["head"] = params["head"] + 1e-3 * square.sum()
    return params, momentum, loss


def _local(params, x):
    up = lax.all_gather(params["up"].astype(jnp.bfloat16), "data", axis=1, tiled=True)
    down = lax.all_gather(params["down"].astype(jnp.bfloat16), "data", axis=2, tiled=True)
    head = params["head"].astype(jnp.bfloat16)
    d_up, total = jnp.zeros(up.shape, jnp.float32), jnp.zeros(())

    def layer(x, weights):
        w_up, w_down = weights
        sent = lax.all_to_all((x @ w_up).reshape(2, -1, HIDDEN), "expert", 0, 0).reshape(x.shape[0], HIDDEN)
        return x + jax.nn.silu(sent) @ w_down, None

    def tick(carry, number):
        x, d_up, total = carry
        y, _ = lax.scan(layer, x, (up, down))
        loss = lax.cond(number % 3 == 0, lambda y: (y @ head).astype(jnp.float32).sum(), lambda y: 0.0, y)
        total = total + lax.psum(loss, "stage")
        d_up = d_up + jnp.einsum("td,tf->df", x, jnp.tile(y, (1, HIDDEN // WIDTH)))[None].astype(jnp.float32)
        return (lax.ppermute(y, "stage", [(0, 1), (1, 0)]), d_up, total), None

    (x, d_up, total), _ = lax.scan(tick, (x, d_up, total), jnp.arange(TICKS))
    grads = {
        "up": lax.psum_scatter(d_up, "data", scatter_dimension=1, tiled=True),
        "down": params["down"] * total,
        "head": lax.psum(params["head"] * total, ("data", "expert")),
    }
    return grads, lax.psum(total, ("data", "expert"))
