"""A step on eight emulated devices is the step of one device: loss, gradients, MuonClip's update, statistics."""

import numpy as np
import pytest

from tests.parallel.eight import steps

CASES = {
    "one": {"do": "step gradients validate"},
    "data": {"parallel.data": 8, "train.micro_batches": 2, "do": "step"},
    "expert": {"parallel.expert": 8, "train.micro_batches": 2, "do": "step validate"},
    "stage": {"parallel.stage": 4, "do": "step"},
    "all": {
        "parallel.data": 2,
        "parallel.expert": 2,
        "parallel.stage": 2,
        "parallel.virtual_stages": 2,
        "do": "step validate",
    },
    "gpipe": {"parallel.data": 2, "parallel.stage": 4, "parallel.schedule": "gpipe", "do": "gradients"},
    "scan": {
        "parallel.expert": 2,
        "parallel.stage": 2,
        "parallel.virtual_stages": 2,
        "parallel.schedule": "scan",
        "do": "gradients",
    },
    "uneven": {  # two of six slots are empty, four heads do not divide over three stages
        "parallel.stage": 3,
        "parallel.virtual_stages": 2,
        "parallel.data": 2,
        "train.micro_batches": 3,
        "do": "gradients",
    },
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return steps(tmp_path_factory.mktemp("steps"), CASES)


def relative(a, b):
    return np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-12)


@pytest.mark.parametrize("case", [name for name in CASES if name != "one"])
def test_a_step_on_a_mesh_is_that_of_one_device(found, case):
    here, one = found[case], found["one"]
    assert (here["stats['expert_tokens']"] == one["stats['expert_tokens']"]).all()
    for name, value in here.items():
        if name != "round_trip" and "expert_tokens" not in name:
            assert relative(value, one[name]) <= 1e-5, name


@pytest.mark.parametrize("case", ["data", "expert", "stage", "all"])
def test_the_state_goes_to_its_logical_form_and_back(found, case):
    assert found[case]["round_trip"]
    assert found[case]["params['moe']['experts']['w13']"].shape[0] == 4  # layers, without empty slots


def test_the_batch_clips_heads_and_pads_rows(found):
    assert (found["one"]["stats['max_logit']"] > 0.05).any()
    assert found["one"]["weight"] < 14 * 31
