"""A step on eight emulated devices is the step of one device: loss, gradients, MuonClip's update, statistics."""

import functools

import numpy as np
import pytest

from tests.parallel.one_step import one_step
from tests.parallel.policy_losses import CONFIGS, every_policy_loss, with_policy_targets
from tests.parallel.turn_loss import TurnLoss, with_turns

pytestmark = pytest.mark.devices(8)

WHOLE = {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2, "parallel.virtual_stages": 2}
KEPT = {"train.keep_across": ("attention_output", "attention_lse", "layer_middle", "expert_gate_up", "shared_gate_up")}
UNEVEN = {  # two of six slots are empty, four heads do not divide over three stages
    "parallel.stage": 3,
    "parallel.virtual_stages": 2,
    "parallel.data": 2,
    "train.micro_batches": 3,
}
TWO_PARTS = {"train.micro_batches": 2}
STEPS = {
    "data, expert and stage": WHOLE,
    "data": {"parallel.data": 8, **TWO_PARTS},
    "expert": {"parallel.expert": 8, **TWO_PARTS},
    "stage": {"parallel.stage": 4},
    "tensor": {"parallel.tensor": 2, **TWO_PARTS},
    "tensor, data and expert": {"parallel.tensor": 2, "parallel.data": 2, "parallel.expert": 2},
    "tensor, stage and expert": {"parallel.tensor": 2, "parallel.stage": 2, "parallel.expert": 2},
    "context": {"parallel.context": 2, **TWO_PARTS},
    "context, data and expert": {"parallel.context": 2, "parallel.data": 2, "parallel.expert": 2},
    "context, stage and tensor": {"parallel.context": 2, "parallel.stage": 2, "parallel.tensor": 2},
}
GRADIENTS = {
    "uneven": UNEVEN,
    "autodiff": {
        "parallel.expert": 2,
        "parallel.stage": 2,
        "parallel.virtual_stages": 2,
        "parallel.executor": "autodiff",
    },
}
SMALL = {"model.layers": 2, "model.heads": 8, "train.micro_batches": 1}
SHARED = {"parallel.context": 2, "parallel.tensor": 2, "parallel.expert": 2}
FEW_SLOTS = {"parallel.expert_slots": 0.2, "parallel.expert": 2}
DROPPING = {
    "expert": SMALL | FEW_SLOTS,
    "tensor, differentiated by JAX": FEW_SLOTS
    | {"parallel.stage": 2, "parallel.tensor": 2, "parallel.executor": "autodiff"},
    "data, stage": FEW_SLOTS | {"parallel.data": 2, "parallel.stage": 2},
}
GROUPED = {
    "model.attention": "gqa",
    "model.heads": 8,
    "model.gqa.kv_heads": 4,
    "model.gqa.head_dim": 8,
    "model.gqa.qkv_bias": True,
    "model.tied_head": True,
    "model.vocab": 301,  # padded where it is spread
    "model.layers": 4,
    "model.dense_layers": 0,
}
GROUPED_QUERIES = {
    "data and stage": {"parallel.data": 2, "parallel.stage": 2},
    "context and tensor": {"parallel.context": 2, "parallel.tensor": 2, "train.remat": "selective"},
    "context, stage and tensor": {"parallel.context": 2, "parallel.stage": 2, "parallel.tensor": 2},
}
REPLAYING = {"model.layers": 4, "train.micro_batches": 2, "train.batch_size": 8}
STAGES = {"parallel.stage": 2, "parallel.virtual_stages": 2, "parallel.expert": 2}
REPLAYED = {
    "stages": STAGES,
    "stages, differentiated by JAX": STAGES | {"parallel.executor": "autodiff"},
    "tensor and context": {"parallel.tensor": 2, "parallel.context": 2},
}
POLICY = {"model.layers": 3, "model.heads": 8, "train.micro_batches": 2}
POLICIES = {
    "data, expert and stage": {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2},
    "tensor and context": {"parallel.tensor": 2, "parallel.context": 2},
}
TURNS = {
    "data, expert and stage": WHOLE,
    "data, expert and stage, differentiated by JAX": WHOLE
    | {"parallel.virtual_stages": 1, "parallel.executor": "autodiff"},
    "context and stage": {"parallel.context": 2, "parallel.stage": 2},
    "tensor and context": SMALL | {"parallel.tensor": 2, "parallel.context": 2},
}


@pytest.fixture(scope="module")
def one():
    """The step of one device; moments after the step are its gradients."""
    return one_step({}, step=True, validate=True)


@functools.cache
def gradients_alone():
    return one_step({}, gradients=True)


@functools.cache
def turns_alone(small):
    return one_step(SMALL if small else {}, gradients=True, validate=True, loss=(TurnLoss, with_turns))


@functools.cache
def grouped_alone():
    return one_step(GROUPED, step=True)


@functools.cache
def replayed(case=None):
    return one_step(REPLAYING | REPLAYED.get(case, {}), gradients=True, validate=True, replay=True)


@functools.cache
def policies(case=None):
    loss = every_policy_loss, with_policy_targets
    return one_step(POLICY | POLICIES.get(case, {}), gradients=True, loss=loss)


@pytest.mark.parametrize(
    "case", [case if case == "expert" else pytest.param(case, marks=pytest.mark.slow) for case in DROPPING]
)
def test_rows_without_a_slot_are_counted(case):
    overrides = DROPPING[case]
    found = one_step(overrides, gradients=case != "expert", counts=True, crowd=True)
    real = found["real"]  # [micro-batches, rows]; every token goes to the first rank
    devices = overrides["parallel.expert"] * overrides.get("parallel.data", 1)
    tokens = real.shape[1] * 32 // devices
    slots = -(-int(np.ceil(0.2 * tokens)) // 16) * 16  # whole groups of 16
    wanted = real.reshape(len(real), devices, -1).sum(-1)
    dropped = np.maximum(wanted - slots, 0).sum()
    assert 0 < dropped < wanted.sum() / 2
    assert (found["stats['dropped_rows']"] == dropped).all()
    assert np.isfinite(found["loss['terms']['nll']"])


def relative(a, b):
    return np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-12)


def assert_same_step(here, one):
    assert (here["stats['expert_tokens']"] == one["stats['expert_tokens']"]).all()
    for name, value in here.items():
        if name not in ("round_trip", "real") and "expert_tokens" not in name:
            assert relative(value, one[name]) <= 1e-5, name
    if "round_trip" in here:  # the state goes to its logical form and back
        assert here["round_trip"]
        assert here["params['moe']['experts']['w13']"].shape[0] == 4  # layers, without empty slots


def test_a_step_on_a_mesh_is_that_of_one_device(one):
    """The state before it is made there as it is on one device; the pipeline keeps some residuals, not all."""
    assert_same_step(one_step(WHOLE | KEPT, step=True, validate=True, init=True), one)


def test_gradients_where_devices_share_rows_and_layers_are_those_of_one_device():
    assert_same_step(one_step(SMALL | SHARED, gradients=True), one_step(SMALL, gradients=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", TURNS)
def test_a_loss_over_turns_and_branches_is_that_of_one_device(case):
    here = one_step(TURNS[case], gradients=True, validate=True, loss=(TurnLoss, with_turns))
    assert_same_step(here, turns_alone(case == "tensor and context"))
    assert len({name for name in here if name.startswith("loss['terms']")}) == 3
    assert here["loss['metrics']['entropy/nats']"] > 5.0  # of 300 tokens, nearly uniform: log 300 = 5.7


@pytest.mark.slow
@pytest.mark.parametrize("case", STEPS)
def test_a_step_on_other_meshes_is_that_of_one_device(one, case):
    assert_same_step(one_step(STEPS[case], step=True, validate=True), one)


@pytest.mark.slow
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_on_other_meshes_are_those_of_one_device(case):
    assert_same_step(one_step(GRADIENTS[case], gradients=True), gradients_alone())


@pytest.mark.slow
@pytest.mark.parametrize("case", GROUPED_QUERIES)
def test_a_step_with_grouped_queries_is_that_of_one_device(case):
    assert_same_step(one_step(GROUPED | GROUPED_QUERIES[case], step=True), grouped_alone())


@pytest.mark.slow
@pytest.mark.parametrize("case", REPLAYED)
def test_gradients_with_replayed_experts_are_those_of_one_device(case):
    assert replayed(case).keys() == replayed().keys()
    assert_same_step(replayed(case), replayed())


@pytest.mark.slow
def test_replayed_experts_change_where_tokens_go():
    counts = [step["stats['expert_tokens']"] for step in (replayed(), one_step(REPLAYING, counts=True))]
    assert (counts[0] != counts[1]).any() and counts[0].sum() == counts[1].sum()


@pytest.mark.slow
@pytest.mark.parametrize("case", POLICIES)
def test_every_policy_loss_on_a_mesh_is_that_of_one_device(case):
    assert policies(case).keys() == policies().keys()
    assert_same_step(policies(case), policies())


@pytest.mark.slow
def test_the_batch_holds_what_the_policy_losses_differ_in():
    one = policies()
    terms = {name: float(value) for name, value in one.items() if name.startswith("loss['terms']")}
    assert len(terms) == len(CONFIGS) + 1 and len({round(term, 6) for term in terms.values()}) == len(terms)
    clipped = [float(value) for name, value in one.items() if name.endswith("policy/clipped']")]
    assert len(clipped) == 3 and all(0.01 < share < 0.9 for share in clipped)


def test_the_batch_clips_heads_and_pads_rows(one):
    logits = one["stats['max_logit']['text']"]
    assert (logits > 0.03).any() and (logits < 0.03).any()
    assert one["denominators['nll']"] < 14 * 31
