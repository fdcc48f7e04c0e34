"""The expert exchange on 8 emulated devices equals the dense layer on one device, by every backend."""

from __future__ import annotations

from functools import lru_cache, partial
import re

import jax
from jax import lax
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
import numpy as np
import pytest

from pallas_kernels.expert_exchange import all_to_all, expert_combine, expert_dispatch, expert_parallel
from pallas_kernels.expert_exchange.dma import RowRanges, exchange_rows
from pallas_kernels.routed_experts import routed_experts
from tests.jaxpr import equations
from tests.pallas_kernels.exchange import ROUTINGS, D, E, K, inputs, route, without_dropped
from tests.pallas_kernels.expert_oracle import NAMES, assert_close, dense_oracle

pytestmark = pytest.mark.devices(8)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Several blocks of few tokens; the interpreter starts anew after a test that failed."""
    monkeypatch.setattr(all_to_all, "_TOKEN_BLOCK", 16)
    yield
    pltpu.reset_tpu_interpret_mode_state()


# --- programs ---------------------------------------------------------------------------------------------------------


def mesh_of(ranks):
    return Mesh(np.array(jax.devices()[:ranks]), ("expert",))


@jax.custom_vjp
def poison(array_R, unused_R):
    """Writes NaN into unused rows, and into those of the cotangent."""
    return jnp.where(unused_R[:, None], jnp.nan, array_R)


poison.defvjp(lambda array, unused: (poison(array, unused), unused), lambda unused, d: (poison(d, unused), None))


@jax.custom_vjp
def poison_cotangent(array_RK, unused_RK):
    """Writes NaN into unused elements of the cotangent."""
    return array_RK


poison_cotangent.defvjp(lambda a, unused: (a, unused), lambda unused, d: (jnp.where(unused, jnp.nan, d), None))


def poisoned_layer(x, w13, w2, gates, ids, *, backend, impl, slots=None):
    """Computes ``expert_parallel`` with NaN in all rows without an expert at every step."""
    received, way = expert_dispatch(
        x, ids, gates, experts=E, axis_name="expert", backend=backend, impl=impl, slots=slots
    )
    unused_RK = received.expert_ids == w13.shape[0]
    unused_R = jnp.all(unused_RK, axis=1)
    x_RD, gates_RK = poison(received.x, unused_R), poison_cotangent(received.gates, unused_RK)
    y_RD = routed_experts(x_RD, w13, w2, received.expert_ids, gates_RK, impl="xla")
    return expert_combine(poison(y_RD, unused_R), way), way.dropped[None]


def layer(x, w13, w2, gates, ids, **options):
    y, dropped = expert_parallel(x, w13, w2, ids, gates, axis_name="expert", **options)
    return y, dropped[None]


@lru_cache(None)
def program(ranks, poisoned=False, **options):
    """Compiles (arrays, dy, ids) -> (y, gradients, dropped of each rank)."""
    one = partial(poisoned_layer if poisoned else layer, impl=impl_of(options["backend"]), **options)
    spec = Spec("expert")
    check_vma = options["backend"] != "dma"  # the interpreter does not support it
    mapped = jax.shard_map(one, mesh=mesh_of(ranks), in_specs=spec, out_specs=spec, check_vma=check_vma)

    def run(arrays, dy, ids):
        y, vjp, dropped = jax.vjp(lambda *a: mapped(*a, ids), *arrays, has_aux=True)
        return y, vjp(dy), dropped

    return jax.jit(run)


def impl_of(backend):
    return "interpret" if backend == "dma" else "xla"


def compare(run, pattern, ranks, tokens, seed, slots, chunks):
    """Compares a program with the oracle on one routing; returns the number of dropped rows."""
    ids = route(pattern, ranks, tokens, seed)
    arrays, dy = inputs(ranks * tokens, seed)
    y, grads, dropped = run(arrays, dy, ids.reshape(-1, K))
    size = -(-tokens // chunks)
    parts = [without_dropped(ids[:, i : i + size], slots or tokens) for i in range(0, tokens, size)]
    kept, lost = np.concatenate([part[0] for part in parts], axis=1), sum(part[1] for part in parts)
    np.testing.assert_array_equal(dropped, lost)
    y_exact, exact = dense_oracle(arrays, dy, kept.reshape(-1, K))
    assert_close("y", y, y_exact, 1e-5)
    for name, got, expected in zip(NAMES, grads, exact, strict=True):
        assert_close(name, got, expected, 1e-5)
    return lost.sum()


def sweep(backend, ranks, tokens, patterns=ROUTINGS, slots=None, **options):
    """Runs one compiled program on several routings; returns the rows dropped."""
    run = program(ranks, backend=backend, slots=slots, **options)
    chunks = options.get("chunks", 1)
    return [compare(run, pattern, ranks, tokens, 7 * i, slots, chunks) for i, pattern in enumerate(patterns)]


# --- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["a2a", "dma"])
def test_unused_rows_may_hold_nan_and_slots_may_be_few(backend):
    lost = sweep(backend, 4, 45, poisoned=True, slots=16)
    assert lost[0] > 0 and lost[1] == 4 * (45 - 16) and lost[3] == 0


@pytest.mark.parametrize(
    ("backend", "ranks", "tokens", "options"),
    [
        ("dense", 8, 13, {}),
        pytest.param("dense", 4, 21, {"poisoned": True}, marks=pytest.mark.slow),
        pytest.param("a2a", 8, 13, {}, marks=pytest.mark.slow),
        pytest.param(
            "dma", 8, 13, {"poisoned": True, "patterns": ["uniform", "ranks that receive nothing"]},
            marks=pytest.mark.slow,
        ),
        ("a2a", 1, 1, {"chunks": 2, "patterns": ROUTINGS[:1]}),  # more chunks than tokens
    ],
)  # fmt: skip
def test_any_routing_is_exact(backend, ranks, tokens, options):
    sweep(backend, ranks, tokens, **options)


def test_a2a_in_chunks_of_unequal_size():
    lost = sweep("a2a", 4, 45, slots=16, chunks=2)
    assert lost[1] == 4 * (23 - 16 + 22 - 16)


def test_ragged_on_4_with_its_collective_emulated(monkeypatch):
    monkeypatch.setattr(lax, "ragged_all_to_all", emulated_ragged_all_to_all)
    sweep("ragged", 4, 45, poisoned=True, slots=16)


def emulated_ragged_all_to_all(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """Implements the documentation of ``lax.ragged_all_to_all`` by gathering everything; NaN where sizes disagree."""
    me = lax.axis_index(axis_name)
    operand_PND = lax.all_gather(operand, axis_name)
    first_P, size_P, to_P = (lax.all_gather(a, axis_name)[:, me] for a in (input_offsets, send_sizes, output_offsets))
    row_M = jnp.arange(output.shape[0])
    for sender in range(size_P.size):
        from_M = row_M - to_P[sender] + first_P[sender]
        sent_M = (row_M >= to_P[sender]) & (row_M < to_P[sender] + size_P[sender])
        rows_MD = jnp.where(size_P[sender] == recv_sizes[sender], operand_PND[sender, from_M], jnp.nan)
        output = jnp.where(sent_M[:, None], rows_MD, output)
    return output


def test_types_of_varying_arrays():
    """With check_vma, and gates and tokens that some mesh axes do not vary over: gradients are summed over those."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "expert"))
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 8 * 5, D)).astype(np.float32)
    gates, scale = rng.standard_normal((5, K)).astype(np.float32), rng.standard_normal((E, D)).astype(np.float32)
    ids = route("mixed with none", 8, 5, 0).reshape(-1, K)
    everywhere = Spec(("data", "expert"))

    def local(x, gates, scale, ids):
        weight = jnp.einsum("tk,tke->te", gates, jax.nn.one_hot(ids, scale.shape[0], dtype=x.dtype))
        return jnp.einsum("te,ed,td->td", weight, scale, x)

    def spread(x, gates, scale, ids, backend):
        received, way = expert_dispatch(x, ids, gates, experts=E, axis_name="expert", backend=backend, impl="xla")
        # Unused rows are finite in these two backends, which the einsum needs.
        return expert_combine(local(received.x, received.gates, scale, received.expert_ids), way)

    exact_vjp = jax.vjp(lambda x, g, s: local(x, jnp.tile(g, (8, 1)), s, ids), x, gates, scale)
    for backend in ("dense", "a2a"):
        specs = (everywhere, Spec(), Spec("expert"), everywhere)
        mapped = jax.shard_map(partial(spread, backend=backend), mesh=mesh, in_specs=specs, out_specs=everywhere)

        @jax.jit
        def run(x, gates, scale, dy, mapped=mapped):
            y, vjp = jax.vjp(lambda *a: mapped(*a, ids), x, gates, scale)
            return y, vjp(dy)

        y, grads = run(x, gates, scale, dy)
        assert_close("y", y, exact_vjp[0], 1e-5)
        for name, got, expected in zip(("x", "gates", "w"), grads, exact_vjp[1](dy), strict=True):
            assert_close(name, got, expected, 1e-5)


def test_bfloat16_rows_travel_unchanged_and_sum_in_float32():
    """And gates are 0 where there is no expert, and ids are never negative."""
    ranks, tokens = 4, 21
    ids = route("mixed with none", ranks, tokens, 5)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((ranks * tokens, D)), jnp.bfloat16)
    gates = np.ones((ranks * tokens, K), np.float32)
    factor = np.linspace(-1.3, 1.7, ranks, dtype=np.float32)

    def one(x, ids, gates, backend):
        received, way = expert_dispatch(
            x, ids, gates, experts=E, axis_name="expert", backend=backend, impl=impl_of(backend)
        )
        mine = jnp.asarray(factor)[lax.axis_index("expert")]
        stray_RK = jnp.where(received.expert_ids == E // ranks, received.gates, received.expert_ids < 0)
        y = expert_combine((received.x.astype(jnp.float32) * mine).astype(jnp.bfloat16), way)
        return y, jnp.max(jnp.abs(stray_RK))[None]

    goes_TP = (ids[..., None] // (E // ranks) == np.arange(ranks)).any(axis=2).reshape(-1, ranks)
    rows_PTD = np.asarray((x.astype(jnp.float32) * factor[:, None, None]).astype(jnp.bfloat16), np.float64)
    expected = np.einsum("tp,ptd->td", goes_TP, rows_PTD)
    for backend in ("a2a", "dma"):
        tokens_spec = Spec("expert")
        mapped = jax.shard_map(
            partial(one, backend=backend),
            mesh=mesh_of(ranks),
            in_specs=tokens_spec,
            out_specs=tokens_spec,
            check_vma=False,
        )
        y, stray = jax.jit(mapped)(x, ids.reshape(-1, K), gates)
        assert y.dtype == jnp.bfloat16 and not np.any(stray)
        # Rounded once: half a unit in the last of 8 bits, and the float32 error.
        assert np.all(np.abs(np.asarray(y, np.float64) - expected) <= 2.0**-8 * np.abs(expected) + 1e-6), backend


def test_the_kernel_moves_any_counts_without_a_race():
    """Counts of 0, 1, whole groups and all sizes of pieces, by some ranks nothing; rows beyond whole groups stay."""
    exchange_ragged_ranges(mesh_of(8), detect_races=True)


@pytest.mark.parametrize(
    ("sides", "axes"),
    [
        ((4, 2), ("expert", "data")),
        *(pytest.param(sides, ("data", "expert"), marks=pytest.mark.slow) for sides in ((8, 1), (2, 4))),
    ],
)
def test_the_kernel_stays_within_its_mesh_axis(sides, axes):
    exchange_ragged_ranges(Mesh(np.array(jax.devices()).reshape(sides), axes))


def exchange_ragged_ranges(mesh, **params):
    """Exchanges ranges of several sizes, other ones in each group of ranks, and compare every row of the outputs."""
    ranks = mesh.shape["expert"]
    groups = mesh.size // ranks
    rng = np.random.default_rng(ranks)
    counts = rng.choice([0, 1, 15, 16, 17, 90, 250, 256, 400], (groups, ranks, ranks))
    counts[:, 0, -1], counts[:, -1, 0], counts[:, ranks // 2, 1:] = 496, 592, 0
    whole = -(-counts // 16) * 16
    start, write = np.cumsum(whole, axis=2) - whole, np.cumsum(whole, axis=1) - whole
    rows, out_rows = int(whole.sum(axis=2).max()), int(whole.sum(axis=1).max()) + 16
    source = np.arange(groups * ranks * rows * 2, dtype=np.float32).reshape(groups, ranks, rows, 2)

    def exchange_local(rows, *ranges):
        local = RowRanges(*(a[0, 0] for a in ranges))
        return exchange_rows(rows[0, 0], out_rows, local, axis_name="expert")[None, None]

    spec = Spec("data" if groups > 1 else None, "expert")
    mapped = jax.shard_map(exchange_local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    ranges = (a.astype(np.int32) for a in (start, counts, write, counts.swapaxes(1, 2)))
    pltpu.reset_tpu_interpret_mode_state()
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(**params)):
        out = np.asarray(jax.jit(mapped)(source, *ranges))
    assert not (params and interpret_pallas_call.races.races_found)
    expected = np.full_like(out, np.nan)
    for group, sender, receiver in np.ndindex(groups, ranks, ranks):
        first, to, size = (a[group, sender, receiver] for a in (start, write, whole))
        expected[group, receiver, to : to + size] = source[group, sender, first : first + size]
    np.testing.assert_array_equal(out, expected)


def test_the_kernel_enters_together_and_leaves_when_all_is_sent():
    """Ranks wait for all others before the first DMA, and for all sends, which the interpreter does not check."""
    (x, *_), _ = inputs(4 * 16, 0)
    range_P = jnp.zeros(4, jnp.int32)
    spec = Spec("expert")
    mapped = jax.shard_map(
        lambda x: exchange_rows(x, 16, RowRanges(range_P, range_P, range_P, range_P), axis_name="expert"),
        mesh=mesh_of(4),
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    found = list(equations(jax.make_jaxpr(mapped)(x).jaxpr))
    names = [equation.primitive.name for equation in found]
    signal, wait, first_copy = (names.index(name) for name in ("semaphore_signal", "semaphore_wait", "dma_start"))
    assert signal < wait < first_copy
    assert found[wait].invars[1].val == 3
    loops = [equation.params["length"] for equation in found[:signal] if equation.primitive.name == "scan"]
    assert loops[-1] == 3
    assert names.count("dma_wait") == 2 * names.count("dma_start")


def test_each_collective_runs_once_each_way_and_rows_are_only_gathered():
    """Forward: choices, (counts,) rows, rows back; backward: rows, rows back, gates. No plan, no ids again."""
    arrays, dy = inputs(4 * 21, 0)
    ids = route("uniform", 4, 21, 0).reshape(-1, K)
    expected = {
        "dense": {"all_gather": 3, "reduce_scatter": 3},
        "a2a": {"all_to_all": 6},
        "ragged": {"all_to_all": 3, "ragged_all_to_all": 4},
        "dma": {"all_to_all": 3, "pallas_call": 4},
    }
    kinds = {"psum"}.union(*expected.values())
    for backend, counts in expected.items():
        found = list(equations(jax.make_jaxpr(program(4, poisoned=True, backend=backend))(arrays, dy, ids).jaxpr))
        names = [equation.primitive.name for equation in found]
        assert {kind: names.count(kind) for kind in kinds if kind in names} == counts, backend
        for equation in found:
            if equation.primitive.name.startswith("scatter"):
                assert equation.invars[0].aval.ndim == 1, equation


def test_wrong_arguments_are_named():
    (x, w13, w2, gates), _ = inputs(8, 0)
    ids = route("uniform", 4, 2, 0).reshape(-1, K)

    def call(needle, x=x, ids=ids, gates=gates, ranks=4, **options):
        options = {"backend": "a2a", "impl": "xla"} | options
        run = partial(layer, **options)
        spec = Spec("expert")
        mapped = jax.shard_map(run, mesh=mesh_of(ranks), in_specs=spec, out_specs=spec, check_vma=False)
        with pytest.raises(ValueError, match=re.escape(needle)):
            mapped(x, w13, w2, gates, ids)

    call("backend is one of", backend="nccl")
    call("impl is one of", impl="fast")
    call("'pallas' or 'interpret'", backend="dma")
    call("chunks", chunks=0)
    call("slots", slots=0)
    call("int32", ids=ids.astype(np.float32))
    call("float32 gates", gates=jnp.asarray(gates, jnp.bfloat16))
    call("[T, K]", gates=gates[:, :2])
    spec = Spec("expert")
    odd = partial(expert_dispatch, experts=6, axis_name="expert", backend="a2a", impl="xla")
    try:
        jax.shard_map(lambda *a: odd(*a)[0], mesh=mesh_of(4), in_specs=spec, out_specs=spec)(x, ids, gates)
    except ValueError as error:
        assert "6 experts" in str(error)
    else:
        raise AssertionError("no error about 6 experts on 4 ranks")
