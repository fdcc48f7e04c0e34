"""A step on eight emulated devices is the step of one device: loss, gradients, MuonClip's update, statistics."""

import numpy as np
import pytest

from tests.parallel.eight import steps

ALWAYS = {
    "one": {"do": "step validate"},  # moments after the step are its gradients
    "all": {
        "parallel.data": 2,
        "parallel.expert": 2,
        "parallel.stage": 2,
        "parallel.virtual_stages": 2,
        "do": "step validate",
    },
}
ALONE = {"one": {"do": "step gradients validate"}}
SLOW = {
    "uneven": {  # two of six slots are empty, four heads do not divide over three stages
        "parallel.stage": 3,
        "parallel.virtual_stages": 2,
        "parallel.data": 2,
        "train.micro_batches": 3,
        "do": "gradients",
    },
    "data": {"parallel.data": 8, "train.micro_batches": 2, "do": "step"},
    "expert": {"parallel.expert": 8, "train.micro_batches": 2, "do": "step validate"},
    "stage": {"parallel.stage": 4, "do": "step"},
    "gpipe": {"parallel.data": 2, "parallel.stage": 4, "parallel.executor": "gpipe", "do": "gradients"},
    "autodiff": {
        "parallel.expert": 2,
        "parallel.stage": 2,
        "parallel.virtual_stages": 2,
        "parallel.executor": "autodiff",
        "do": "gradients",
    },
}
SLOW_SHARED = {
    "tensor": {"parallel.tensor": 2, "train.micro_batches": 2, "do": "step validate"},
    "tensor, data and expert": {
        "parallel.tensor": 2,
        "parallel.data": 2,
        "parallel.expert": 2,
        "do": "step validate",
    },
    "tensor, stage and expert": {
        "parallel.tensor": 2,
        "parallel.stage": 2,
        "parallel.expert": 2,
        "do": "step validate",
    },
    "context": {"parallel.context": 2, "train.micro_batches": 2, "do": "step validate"},
    "context, data and expert": {
        "parallel.context": 2,
        "parallel.data": 2,
        "parallel.expert": 2,
        "do": "step validate",
    },
    "context, stage and tensor": {
        "parallel.context": 2,
        "parallel.stage": 2,
        "parallel.tensor": 2,
        "do": "step validate",
    },
}
SMALL = {"model.layers": 2, "model.heads": 8, "train.micro_batches": 1, "do": "gradients"}
SHARED = {
    "small": SMALL,
    "context, tensor and expert": SMALL | {"parallel.context": 2, "parallel.tensor": 2, "parallel.expert": 2},
}
CROWDED = {"parallel.expert_slots": 0.2, "do": "gradients crowd"}
DROPPING = {
    "expert": SMALL | CROWDED | {"parallel.expert": 2},
    "tensor, differentiated by JAX": CROWDED
    | {"parallel.expert": 2, "parallel.stage": 2, "parallel.tensor": 2, "parallel.executor": "autodiff"},
    "data, stage": CROWDED | {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2},
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
    "do": "step",
}
GROUPED_QUERIES = {
    "one": GROUPED,
    "data and stage": GROUPED | {"parallel.data": 2, "parallel.stage": 2},
    "context and tensor": GROUPED | {"parallel.context": 2, "parallel.tensor": 2, "train.remat": "selective"},
    "context, stage and tensor": GROUPED | {"parallel.context": 2, "parallel.stage": 2, "parallel.tensor": 2},
}


TURNS = {"do": "gradients validate turns"}
SMALL_TURNS = SMALL | {"do": "gradients validate turns"}
TERMS_AND_TURNS = {
    "one": TURNS,
    "data, expert and stage": TURNS
    | {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2, "parallel.virtual_stages": 2},
    "data, expert and stage, differentiated by JAX": TURNS
    | {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2, "parallel.executor": "autodiff"},
    "context and stage": TURNS | {"parallel.context": 2, "parallel.stage": 2},
    "small": SMALL_TURNS,
    "tensor and context": SMALL_TURNS | {"parallel.tensor": 2, "parallel.context": 2},
}
TERMS_ALWAYS = ("one", "data, expert and stage", "small", "tensor and context")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All cases that are not slow, in one process."""
    return steps(tmp_path_factory.mktemp("steps"), ALWAYS | SHARED | {"expert": DROPPING["expert"]})


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One device, with all that slow cases compare."""
    return steps(tmp_path_factory.mktemp("alone"), ALONE)["one"]


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    return steps(tmp_path_factory.mktemp("more"), SLOW)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    return steps(tmp_path_factory.mktemp("grouped"), GROUPED_QUERIES)


def test_rows_without_a_slot_are_counted(found):
    check_dropped_rows(found["expert"], DROPPING["expert"])


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in DROPPING if case != "expert"])
def test_rows_without_a_slot_are_counted_on_other_meshes(tmp_path, case):
    overrides = DROPPING[case]
    check_dropped_rows(steps(tmp_path, {case: overrides})[case], overrides)


def check_dropped_rows(found, overrides):
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


def test_a_step_on_a_mesh_is_that_of_one_device(found):
    assert_same_step(found["all"], found["one"])


def test_gradients_where_devices_share_rows_and_layers_are_those_of_one_device(found):
    assert_same_step(found["context, tensor and expert"], found["small"])


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    return steps(tmp_path_factory.mktemp("turns"), {name: TERMS_AND_TURNS[name] for name in TERMS_ALWAYS})


@pytest.mark.slow
@pytest.mark.parametrize(("case", "alone"), [("data, expert and stage", "one"), ("tensor and context", "small")])
def test_a_loss_over_turns_and_branches_is_that_of_one_device(turns, case, alone):
    assert_same_step(turns[case], turns[alone])
    assert len({name for name in turns[case] if name.startswith("loss['terms']")}) == 3
    assert turns[case]["loss['metrics']['entropy/nats']"] > 5.0  # of 300 tokens, nearly uniform: log 300 = 5.7


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in TERMS_AND_TURNS if name not in TERMS_ALWAYS])
def test_a_loss_over_turns_and_branches_on_other_meshes_is_that_of_one_device(turns, tmp_path, case):
    assert_same_step(steps(tmp_path, {case: TERMS_AND_TURNS[case]})[case], turns["one"])


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_a_step_on_other_meshes_is_that_of_one_device(alone, more, case):
    assert_same_step(more[case], alone)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_SHARED)
def test_a_step_where_devices_share_rows_or_layers_is_that_of_one_device(alone, tmp_path, case):
    assert_same_step(steps(tmp_path, {case: SLOW_SHARED[case]})[case], alone)


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in GROUPED_QUERIES if name != "one"])
def test_a_step_with_grouped_queries_is_that_of_one_device(grouped, case):
    assert_same_step(grouped[case], grouped["one"])


def test_the_batch_clips_heads_and_pads_rows(found):
    logits = found["one"]["stats['max_logit']['text']"]
    assert (logits > 0.03).any() and (logits < 0.03).any()
    assert found["one"]["denominators['nll']"] < 14 * 31
