"""What a pipeline keeps of a chunk until its backward tick: by name and bytes, and the products that this spares."""

from collections import defaultdict
import functools
import signal

import pytest

from k2jax.aot.cost.jaxpr_flops import loop_costs
from k2jax.config import resolve
from k2jax.errors import UserError
from k2jax.model.remat import activation_bytes
from k2jax.parallel.schedule import build_pipeline_schedule
from k2jax.train import train
from tests.jaxpr import equations
from tests.parallel.one_step import one_step
from tests.parallel.test_equality import assert_same_step, relative
from tests.parallel.test_stage import names_of, traced
from tests.parallel.tiny import config_of
from tests.train.test_run import losses, start, wait_for_step
from tests.train.tiny import tiny_config, write_corpus

WIDTH, HEADS, RANK, ROPE, HEAD, SHARED = 32, 4, 16, 4, 8, 16  # of tests/parallel/tiny.py, like LAYERS
LENGTH, STAGES, LAYERS = 32, 2, 4
TOKENS = 4 * LENGTH
PRODUCTS = {
    ("shared_gate_up",): WIDTH * 2 * SHARED,
    ("layer_middle",): HEADS * HEAD * WIDTH,
    ("q_latent",): WIDTH * RANK,
    ("kv_latent",): WIDTH * (RANK + ROPE),
    ("attention_output", "attention_lse"): LENGTH * HEADS * (HEAD + ROPE + HEAD),  # the XLA path's whole square
    ("q_up",): RANK * HEADS * (HEAD + ROPE),
    ("kv_up",): RANK * HEADS * 2 * HEAD,
}
"""Multiplications of a token that make what is kept, by hand."""
FITTING = tuple(name for names in PRODUCTS for name in names if not name.endswith("_up") or name == "shared_gate_up")
EVERY = tuple(sorted(names_of("mla")["moe"] - {"layer_input"}))
FP8 = ("expert_gate_up", "expert_input", "shared_gate_up")
FP8_BOUND = 2e-4
NOTHING = ("attention_input",)  # a norm: no product leads to it


def step(rounds, keep_across, store_fp8=(), **train):
    """The traced gradients of one micro-batch on two stages of ``rounds`` chunks each."""
    return traced(STAGES, "mla", rounds, keep_across=keep_across, store_fp8=store_fp8, **train).jaxpr


def buffers_of(program) -> dict[str, int]:
    """Bytes of the slots that the loop over ticks carries, by the name of what is put there."""
    found: dict[str, int] = {}
    for loop in (eqn for eqn in equations(program) if eqn.primitive.name == "scan"):
        body, constants = loop.params["jaxpr"].jaxpr, loop.params["num_consts"]
        carried, made_by = body.invars[constants : constants + loop.params["num_carry"]], _made_by(body)
        sizes = defaultdict(int)
        for eqn in body.eqns:
            buffer, *values = eqn.invars or [None]
            if eqn.primitive.name == "scatter-add" or not values or buffer not in carried:
                continue  # statistics
            if buffer.aval.ndim and values[0].aval.shape == buffer.aval.shape[1:]:
                sizes[_name(values[0], made_by)] += buffer.aval.size * buffer.aval.dtype.itemsize
        if any(eqn.primitive.name == "ppermute" for eqn in body.eqns) and len(sizes) > len(found):
            found = dict(sizes)
    return found


def _made_by(jaxpr):
    return {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}


def _name(var, made_by) -> str:
    """The name of an activation, of all layers of a loop too; ``carried`` for what lay there at the tick before."""
    eqn = made_by.get(var)
    while eqn is not None and eqn.primitive.name == "reduce_precision":
        var = eqn.invars[0]
        eqn = made_by.get(var)
    if eqn is None:
        return "carried"
    if eqn.primitive.name != "scan":
        return eqn.params["name"] if eqn.primitive.name == "name" else eqn.primitive.name
    body = eqn.params["jaxpr"].jaxpr
    stacked = body.outvars[eqn.outvars.index(var)]
    return "layer_input" if stacked in body.invars else _name(stacked, _made_by(body))


@pytest.mark.parametrize(
    ("rounds", "names", "fp8"),
    [
        (2, FITTING, ()),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, EVERY, FP8), (1, EVERY, ()), (1, EVERY, FP8)]),
    ],
    ids=["fitting", "every, fp8", "every, two layers", "every, two layers, fp8"],
)
def test_slots_hold_what_is_named_and_no_weights(rounds, names, fp8):
    """As many bytes as the declared table has, in every slot of the schedule and in that of idle cells."""
    config = config_of({"train.keep_across": names, "train.store_fp8": fp8, "parallel.stage": STAGES})
    layers = LAYERS // (STAGES * rounds)
    named = frozenset(names) | ({"layer_input"} if layers > 1 else set())  # of one layer it is the chunk's input
    if "shared_gate_up" in fp8:  # the backward makes the activation from the rounded copy
        named -= {"shared_activation"}
    of_layer = activation_bytes(config, TOKENS, "moe", "float32", names=named)
    slots = build_pipeline_schedule(STAGES, rounds, STAGES * rounds, 1).slots + 1
    kept = {name: slots * layers * size for name, size in of_layer.items()}
    assert buffers_of(step(rounds, names, fp8)) == kept | {"carried": slots * TOKENS * WIDTH * 4}


def flops_of(program) -> float:
    """Of products, without what nothing reads."""
    return sum(loop.times * loop.cost.flops for loop in loop_costs(program))


@pytest.mark.parametrize(
    "names", [FITTING, *(pytest.param(names, marks=pytest.mark.slow) for names in PRODUCTS)], ids="+".join
)
def test_the_backward_has_no_product_that_leads_to_what_is_kept(names):
    spared = sum(count for made, count in PRODUCTS.items() if set(made) <= set(names))
    backward_ticks = STAGES * 2
    assert flops_of(step(2, NOTHING)) - flops_of(step(2, names)) == backward_ticks * 2 * TOKENS * spared


@pytest.mark.slow
def test_what_is_kept_is_not_made_again_by_an_inner_policy_or_in_a_loop_of_layers():
    """The experts' products too, of which the path without kernels has more than one form: at least the one."""
    experts = 2 * TOKENS * 2 * WIDTH * 2 * 16  # two experts of a token
    spared = 2 * TOKENS * sum(count for made, count in PRODUCTS.items() if set(made) <= set(FITTING))
    for rounds, policy in ((1, {}), (2, {"remat": "selective"}), (2, {"remat": "full"})):
        nothing, fitting, every = (
            flops_of(step(rounds, names, **policy)) for names in (NOTHING, FITTING, (*FITTING, "expert_gate_up"))
        )
        passes = LAYERS  # of a layer, in the backward ticks of a stage, idle ones included
        assert nothing - fitting >= passes * spared
        assert fitting - every >= passes * experts


@functools.cache
def gradients(train=(), parallel=()):
    return one_step({f"train.{key}": value for key, value in train} | dict(parallel), gradients=True)


@pytest.mark.slow
@pytest.mark.devices(8)
@pytest.mark.parametrize("offload", [(), ("layer_input",)], ids=["", "offloaded"])
@pytest.mark.parametrize("remat", ["none", "selective", "full"])
@pytest.mark.parametrize("fp8", [(), FP8], ids=["", "fp8"])
@pytest.mark.parametrize("names", [(), FITTING, EVERY], ids=["nothing", "fitting", "every"])
def test_gradients_are_those_of_one_device_whatever_is_kept(names, fp8, remat, offload):
    """In FP8 those of one device that rounds the same residuals, which differ from the exact ones by a few percent."""
    if remat == "none" and (offload or not set(fp8) <= set(names)):
        return  # refused
    lists = (("remat", remat), ("store_fp8", fp8), ("offload", offload), ("keep_across", names))
    mesh = tuple((f"parallel.{axis}", 2) for axis in ("data", "expert", "stage", "virtual_stages"))
    here = gradients(lists, mesh)
    rounded = gradients((("remat", "selective"), ("store_fp8", fp8))) if fp8 else None
    if fp8:  # a difference in the last bit may be rounded to the next of eight bits: 3.2e-5 was seen
        assert max(relative(here[name], rounded[name]) for name in here if name.startswith("grads")) <= FP8_BOUND
    else:
        assert_same_step(here, gradients())
    exact = gradients()
    moved = max(relative(here[name], exact[name]) for name in here if name.startswith("grads"))
    assert 1e-3 < moved < 0.1 if fp8 else moved <= 1e-5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"parallel.stage": 1}, "set config.parallel.stage and parallel.executor=1f1b, or use config.train.keep"),
        ({"parallel.executor": "autodiff"}, "set config.parallel.stage and parallel.executor=1f1b"),
        ({"train.keep_across": ("q_latnet",)}, "no activation 'q_latnet'; did you mean 'q_latent'?"),
        ({"train.keep_across": ("dense_gate_up",)}, "no activation 'dense_gate_up'"),  # no layer of the pipeline has it
        ({"train.keep_across": ("layer_input",)}, "keeps 'layer_input' anyway"),
        ({"train.recompute": ("q_latent",), "train.remat": "selective"}, "keep_across keeps it on the device"),
        ({"train.offload": ("q_latent",), "train.remat": "selective"}, "keep_across keeps it on the device"),
        ({"train.store_fp8": ("expert_input",)}, "has an effect with config.train.remat selective or full"),
    ],
)
def test_names_without_an_effect_are_refused(keys, message):
    with pytest.raises(UserError) as error:
        config_of({"parallel.stage": STAGES, "train.keep_across": ("q_latent",)} | keys)
    assert message in str(error.value) and "\n" not in str(error.value)


def keeping_across(folder):
    """A run of two stages that keep residuals across ticks; some of them in FP8."""
    config = tiny_config(folder)
    config.model.dense_layers = 0
    config.parallel.update({"stage": 2, "data": 1})
    config.train.update({"keep_across": (*FITTING, "expert_gate_up"), "store_fp8": ("expert_gate_up",)})
    return config


@pytest.mark.slow
@pytest.mark.devices(2)
def test_a_run_that_is_killed_and_resumed_gives_the_same_losses_bit_for_bit(tmp_path):
    write_corpus(tmp_path)
    module = "from tests.parallel.test_kept import keeping_across\n\n"
    body = f"def get_config():\n    return keeping_across({str(tmp_path)!r})\n"
    (tmp_path / "config.py").write_text(module + body, encoding="utf-8")
    config = resolve(keeping_across(str(tmp_path)))
    assert train(config, tmp_path / "whole") == 0
    process = start(tmp_path, tmp_path / "killed")
    wait_for_step(tmp_path / "killed", 6, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(losses(tmp_path / "killed")) < 12
    assert train(config, tmp_path / "killed") == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
