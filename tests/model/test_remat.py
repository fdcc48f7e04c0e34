"""Activation memory, asserted by what is really saved: names, bytes, dtypes and memory; and its effect on gradients."""

import functools
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from k2jax.aot import topology
from k2jax.config import defaults, replace_keys, resolve
from k2jax.config.activations import ACTIVATIONS, BY_NAME, POLICIES, present
from k2jax.config.schema import Config, TrainConfig
from k2jax.errors import UserError
from k2jax.model import forward, model_specs
from k2jax.model.attention import make_attend
from k2jax.model.decoder import run_stack
from k2jax.model.remat import Remat, activation_bytes, activation_table
from k2jax.params import abstract, map_specs
from pallas_kernels.expert_exchange import expert_parallel
from tests.aot.programs import prepare
from tests.inference.tiny import GQA, MLA, NORMED, PLAIN
from tests.jaxpr import equations
from tests.model.saved import named_bytes, saved

ROWS, LENGTH = 2, 64
TOKENS = ROWS * LENGTH
WIDE = replace_keys(MLA, {"d_model": 160, "moe.expert_ffn": 136, "dense_ffn": 256})  # full tiles of 128 and others
CASES = {
    "mla-dense": (MLA, "dense"),
    "mla-moe": (MLA, "moe"),
    "no-q-latent": (PLAIN, "moe"),
    "gqa-bias": (GQA, "dense"),
    "gqa-norm": (NORMED, "dense"),
    "wide-dense": (WIDE, "dense"),
    "wide-moe": (WIDE, "moe"),
}
FEW = ("mla-dense", "mla-moe", "gqa-bias", "gqa-norm")
each_case = pytest.mark.parametrize(("model", "group"), CASES.values(), ids=CASES)
few_cases = pytest.mark.parametrize(
    ("model", "group"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (name not in FEW)) for name, case in CASES.items()],
    ids=CASES,
)
FP8 = tuple(a.name for a in ACTIVATIONS if a.fp8)


def experiment(model, policy, **lists):
    """A config whose lists hold what this model has of them."""
    return Config(model=model, train=TrainConfig(remat=policy, **lists))


def names_of(model, group):
    return {a.name for a in present(model, group)}


def everything(model, group):
    """Keep all that has a name."""
    return experiment(model, "full", keep=tuple(names_of(model, group)))


def stack_of(config, group, layers, experts=None):
    """A stack of layers of one kind as a function, its abstract weights and hidden states."""
    model = config.model
    real = jnp.ones((ROWS, LENGTH), bool)
    attend = make_attend(model, jnp.zeros((ROWS, LENGTH), jnp.int32), None)

    def stack(params, hidden):
        return run_stack(
            group,
            params,
            hidden,
            real,
            config=model,
            attend=attend,
            remat=Remat.from_config(config.train),
            experts=experts,
        )[0]

    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((layers, *leaf.shape[1:]), leaf.dtype),
        abstract(model_specs(model), jnp.float32)[group],
    )
    return stack, params, jax.ShapeDtypeStruct((ROWS, LENGTH, model.d_model), jnp.float32)


def kept(config, group):
    """Residuals of one layer beside weights and what all layers share."""
    stack, params, hidden = stack_of(config, group, layers=1)
    layer = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), params)
    return [part for part in saved(lambda params, x: stack([params], x), layer, hidden) if part.name != "argument"]


@each_case
def test_every_name_of_the_table_is_made_by_the_model_and_no_other(model, group):
    config = everything(model, group)
    assert named_bytes(kept(config, group)) == activation_bytes(config, TOKENS, group, jnp.float32)


def test_every_name_of_the_table_is_in_some_case():
    assert set().union(*(names_of(*CASES[case]) for case in FEW)) == set(BY_NAME)


@few_cases
@pytest.mark.parametrize("policy", ["selective", "full"])
def test_a_policy_keeps_its_names_and_nothing_else(policy, model, group):
    config = experiment(model, policy)
    found = named_bytes(kept(config, group))
    assert set(found) == POLICIES[policy] & names_of(model, group)
    assert found == activation_bytes(config, TOKENS, group, jnp.float32)


def test_selective_recomputes_what_the_report_recomputes():
    """Norms, SwiGLU and MLA up-projections; of the down-projection of experts nothing is ever kept."""
    recomputed = set(BY_NAME) - POLICIES["selective"]
    assert recomputed == {
        "attention_input", "q_latent_normed", "kv_latent_normed", "ffn_input",
        "q_up", "kv_up",
        "dense_activation", "shared_activation",
    }  # fmt: skip
    width = MLA.moe.active_experts * TOKENS * MLA.d_model * 4  # rows of the experts' output
    assert all(part.bytes < width for part in kept(experiment(MLA, "selective"), "moe") if part.name == "expert_plan")


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("case", FEW)
def test_half_of_the_names_are_switched_and_the_others_stay(case, half):
    """Whichever way a policy has a name, the config turns it around."""
    model, group = CASES[case]
    plain = activation_bytes(experiment(model, "selective"), TOKENS, group, jnp.float32)
    turned = sorted(names_of(model, group) - {"layer_input"})[half::2]
    lists = {
        "recompute": tuple(name for name in turned if name in plain),
        "keep": tuple(name for name in turned if name not in plain),
    }
    switched = named_bytes(kept(experiment(model, "selective", **lists), group))
    assert set(switched) == set(plain) ^ set(turned)
    assert all(switched[other] == plain[other] for other in set(switched) & set(plain))


@pytest.mark.parametrize(
    ("names", "case"),
    [
        *(((name,), "wide-moe") for name in FP8 if name in names_of(*CASES["wide-moe"])),
        *((FP8, case) for case in ("mla-moe", "wide-dense")),
    ],
)
def test_fp8_keeps_one_byte_a_number_and_one_scale_a_tile(names, case):
    model, group = CASES[case]
    names = tuple(name for name in names if name in names_of(model, group))
    config = experiment(model, "selective", store_fp8=names)
    parts = kept(config, group)
    assert not any(p.dtype == "float8_e4m3fn" for p in parts if p.name not in names)
    assert named_bytes(parts) == activation_bytes(config, TOKENS, group, jnp.float32)
    exact = activation_bytes(experiment(model, "selective"), TOKENS, group, jnp.float32)
    for name in names:
        own = [part for part in parts if part.name == name]
        assert {part.dtype for part in own} == {"float8_e4m3fn", "float32"}
        numbers, scales = (sum(p.bytes for p in own if p.dtype == dtype) for dtype in ("float8_e4m3fn", "float32"))
        assert numbers == exact[name] // 4 and numbers / 128 <= scales // 4  # no tile is wider than 128


@few_cases
def test_offloaded_names_are_on_the_host_and_others_are_not(model, group):
    names = sorted(names_of(model, group))
    for half in (names[::2], names[1::2]):
        config = experiment(model, "selective", offload=tuple(half))
        parts = kept(config, group)
        assert {part.name for part in parts if part.on_host} == set(half)
        elsewhere = {part.name for part in parts if not part.on_host}
        assert elsewhere == (POLICIES["selective"] & names_of(model, group)) - set(half)
        assert named_bytes(parts) == activation_bytes(config, TOKENS, group, jnp.float32)


def test_fp8_copies_are_offloaded_as_such():
    config = experiment(MLA, "selective", store_fp8=("expert_gate_up",), offload=("expert_gate_up",))
    parts = [part for part in kept(config, "moe") if part.name == "expert_gate_up"]
    assert all(part.on_host for part in parts) and {part.dtype for part in parts} == {"float8_e4m3fn", "float32"}


@pytest.mark.parametrize("lists", [{}, {"store_fp8": ("expert_input", "expert_gate_up"), "offload": ("layer_input",)}])
def test_a_scan_over_layers_keeps_that_for_each_layer(lists):
    """Stacked residuals, weights aside, are the table's bytes times the layers."""
    config = experiment(MLA, "selective", **lists)
    stack, params, hidden = stack_of(config, "moe", layers=3)
    parts = saved(stack, params, hidden)
    assert {part.name for part in parts} <= {"scan", "argument", "broadcast_in_dim"}
    expected = sum(activation_bytes(config, TOKENS, "moe", jnp.float32).values())
    weight_bytes = sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    stacked = sum(part.bytes for part in parts if part.name == "scan")
    # The numbers of the layers, and what jax stacks of the weights.
    assert 3 * expected <= stacked <= 3 * expected + weight_bytes + 64


@pytest.mark.parametrize(("model", "group"), [(WIDE, "moe"), (GQA, "dense")], ids=["mla-moe", "gqa"])
def test_the_tpu_kernels_keep_the_same_names(model, group):
    model = replace_keys(model, {"d_model": 256, "moe.expert_ffn": 128, "kernels": "interpret"})
    config = experiment(model, "selective")
    found, expected = named_bytes(kept(config, group)), activation_bytes(config, TOKENS, group, jnp.float32)
    assert set(found) == POLICIES["selective"] & names_of(model, group)
    padded = {"attention_output", "attention_lse"}  # to a block of 128 tokens
    assert {n: b for n, b in found.items() if n not in padded} == {n: b for n, b in expected.items() if n not in padded}


@pytest.mark.parametrize(("backend", "sent"), [("a2a", "all_to_all"), ("dense", "all_gather")])
def test_selective_keeps_the_route_of_an_exchange(backend, sent):
    """The backward pass sends ids a second time only where the plan is recomputed, rows where the input is."""
    model = WIDE
    mesh = jax.sharding.AbstractMesh((2,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))

    def exchanged(x, w13, w2, ids, gates):
        return expert_parallel(x, w13, w2, ids, gates, axis_name="expert", backend=backend, impl="xla")

    def sends(**lists):
        """How often one layer sends forward and backward: (ids with gates, rows of the model's width)."""
        stack, params, hidden = stack_of(experiment(model, "selective", **lists), "moe", layers=1, experts=exchanged)
        layer = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), params)
        parts = {name: P("expert") if name == "experts" else P() for name in layer}
        gradient = jax.grad(lambda params, x: stack([params], x).sum())
        program = jax.shard_map(gradient, mesh=mesh, in_specs=(parts, P()), out_specs=parts, check_vma=False)
        calls = [e for e in equations(jax.make_jaxpr(program)(layer, hidden).jaxpr) if e.primitive.name == sent]
        sizes = [call.invars[0].aval for call in calls]
        return sum(a.dtype == jnp.int32 for a in sizes), sum(a.shape[-1] == model.d_model for a in sizes)

    ids, rows = sends()
    assert ids == 1
    assert sends(recompute=("expert_plan",)) == (2, rows)
    assert sends(recompute=("expert_input",)) == (1, rows + 1)


# --- what it does to loss and gradients ----------------------------------------------------------------------------

SMALL = replace_keys(
    WIDE, {"layers": 2, "moe.capacity_factor": 8.0}
)  # what overflows would be computed from the copies
DENSE = replace_keys(GQA, {"layers": 1, "dense_layers": 1})
BATCH = np.random.default_rng(0).integers(0, 61, (ROWS, LENGTH)).astype(np.int32)
EXIT = np.array([[40] * 40 + [60] * 20 + list(range(60, 64)), [64] * 64], np.int32)


@functools.cache
def weights(model):
    rng = np.random.default_rng(0)

    def draw(spec, leaf):
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        return 1 + 0.1 * noise if spec.role == "norm" else 0.3 * noise

    specs = model_specs(model)
    return map_specs(draw, specs, abstract(specs, jnp.float32))


def mean_square(model, remat, params, tokens):
    hidden, _ = forward(params, jnp.asarray(tokens), None, jnp.asarray(EXIT), model, remat=remat)
    return (hidden * jax.random.normal(jax.random.key(1), hidden.shape)).mean()


@functools.cache
def loss_and_gradients(model, remat):
    loss, grads = jax.jit(jax.value_and_grad(functools.partial(mean_square, model, remat)))(weights(model), BATCH)
    return loss, {
        jax.tree_util.keystr(path): np.asarray(leaf, np.float64) for path, leaf in jax.tree.leaves_with_path(grads)
    }


def assert_same(got, expected):
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=2e-5 * max(np.abs(expected[name]).max(), 1e-6))


@pytest.mark.parametrize("model", [SMALL, pytest.param(DENSE, marks=pytest.mark.slow)], ids=["mla-moe", "gqa-dense"])
def test_recomputation_and_offload_change_nothing_but_rounding(model):
    kept = Remat("selective", offload=("layer_input", "attention_output")) if model == SMALL else Remat("full")
    loss, got = loss_and_gradients(model, kept)
    expected_loss, expected = loss_and_gradients(model, Remat("none"))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    assert_same(got, expected)


def test_fp8_leaves_the_loss_alone_and_rounds_gradients_a_little():
    """By at most 6 % of a weight's norm, with cosine 0.998, 4 % of all; where an input was copied by 1 % or more."""
    loss, grads = loss_and_gradients(SMALL, Remat("selective", store_fp8=FP8))
    expected_loss, expected = loss_and_gradients(SMALL, Remat("selective", offload=("layer_input", "attention_output")))
    assert loss == expected_loss
    total = np.sqrt(sum(np.sum((grads[n] - wanted) ** 2) for n, wanted in expected.items()))
    assert total <= 0.04 * np.sqrt(sum(np.sum(wanted**2) for wanted in expected.values()))
    for name, wanted in expected.items():
        error, norm = np.linalg.norm(grads[name] - wanted), np.linalg.norm(wanted)
        assert error <= 0.06 * norm, (name, error / norm)
        assert (grads[name] * wanted).sum() >= 0.998 * norm * np.linalg.norm(grads[name]), name
        if name.endswith(("['experts']['w13']", "['w2']")):
            assert error >= 0.01 * norm, (name, error / norm)


@pytest.mark.slow
def test_one_fp8_name_moves_its_own_weights_alone():
    """The experts' input reaches no gradient but that of their w13."""
    _, grads = loss_and_gradients(SMALL, Remat("selective", store_fp8=("expert_input",)))
    _, expected = loss_and_gradients(SMALL, Remat("selective", offload=("layer_input", "attention_output")))
    moved = {n for n in expected if np.abs(grads[n] - expected[n]).max() > 1e-3 * np.abs(expected[n]).max()}
    assert moved == {"['moe']['experts']['w13']"}


def test_types_inside_a_checked_shard_map_are_those_of_a_mesh():
    """Every value says whether it varies over it."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def gradients(params, tokens):
        loss = functools.partial(mean_square, SMALL, Remat("selective", store_fp8=FP8))
        params = jax.lax.pcast(params, "data", to="varying")
        return jax.lax.psum(jax.grad(loss)(params, tokens), "data")

    sharded = jax.shard_map(gradients, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    grads = jax.eval_shape(sharded, weights(SMALL), BATCH)
    assert jax.tree.map(jnp.shape, grads) == jax.tree.map(jnp.shape, weights(SMALL))


def test_a_tpu_program_moves_offloaded_activations_to_host_memory(monkeypatch):
    """The CPU ignores memory kinds; a program compiled for a TPU has as much more host memory as the table says."""
    prepare(monkeypatch)
    model = replace_keys(MLA, {"d_model": 256, "layers": 3, "dense_layers": 3, "kernels": "xla"})
    config = experiment(model, "selective", offload=("layer_input", "layer_middle"))
    mesh = jax.sharding.Mesh(np.array(topology.devices("v5e:2x2")[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, P())
    params = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), abstract(model_specs(model), jnp.bfloat16)
    )
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32, sharding=sharding)

    def loss(params, tokens):
        return (
            forward(params, tokens, None, None, model, remat=Remat.from_config(config.train))[0]
            .astype(jnp.float32)
            .sum()
        )

    memory = jax.jit(jax.grad(loss)).lower(params, tokens).compile().memory_analysis()
    table = activation_bytes(config, TOKENS, "dense", jnp.bfloat16)
    expected = 3 * sum(table[name] for name in config.train.offload)
    assert expected <= memory.host_temp_size_in_bytes <= 1.5 * expected


# --- configs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "lists", "message"),
    [
        ("selective", {"store_fp8": ("expert_inptu",)}, "no activation 'expert_inptu'; did you mean 'expert_input'?"),
        ("selective", {"offload": ("k",)}, "no activation 'k'"),
        (
            "selective",
            {"store_fp8": ("layer_input",)},
            "cannot hold 'layer_input'; it takes dense_gate_up, expert_input",
        ),
        (
            "none",
            {"offload": ("layer_input",)},
            "train.offload has an effect with config.train.remat selective or full",
        ),
        ("selective", {"recompute": ("layer_input",)}, "a layer is recomputed from it"),
        ("full", {"recompute": ("q_up",), "keep": ("q_up",)}, "keep, store_fp8 or offload keeps it"),
        ("selectiv", {}, "did you mean 'selective'"),
    ],
)
def test_names_without_an_effect_are_refused_in_one_line(policy, lists, message):
    config = defaults("pretrain")
    config.train.remat = policy
    for key, names in lists.items():
        config.train[key] = names
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        resolve(config)
    assert "\n" not in str(caught.value)


def test_the_table_of_the_documentation_says_what_becomes_of_each_name():
    config = experiment(MLA, "selective", store_fp8=("expert_input",), offload=("expert_input", "layer_input"))
    rows = {line.split("`")[1]: line for line in activation_table(config).splitlines()[2:]}
    assert set(rows) == names_of(MLA, "dense") | names_of(MLA, "moe")
    assert rows["q_up"].endswith("| recomputed (MLA up-projection) |") and rows["q_latent"].endswith("| yes |")
    assert rows["expert_input"].endswith(f"| {MLA.d_model + 4} | yes, in FP8, on the host |")


def test_bytes_of_policy_none_are_not_made_up():
    with pytest.raises(ValueError, match="no table"):
        activation_bytes(experiment(MLA, "none"), TOKENS, "moe")
