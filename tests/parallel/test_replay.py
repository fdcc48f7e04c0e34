"""Replayed experts reach their layers on every mesh: steps and held-out losses are those of one device."""

import numpy as np
import pytest

from tests.parallel.one_step import one_step

SMALL = {"model.layers": 4, "train.micro_batches": 2, "train.batch_size": 8}
STAGES = {"parallel.stage": 2, "parallel.virtual_stages": 2, "parallel.expert": 2}
CASES = {
    "one": SMALL,
    "stages": SMALL | STAGES,
    "autodiff": SMALL | STAGES | {"parallel.executor": "autodiff"},
    "tensor and context": SMALL | {"parallel.tensor": 2, "parallel.context": 2},
}
MESHES = ("stages", "autodiff", "tensor and context")

pytestmark = [pytest.mark.slow, pytest.mark.devices(8)]


@pytest.fixture(scope="module")
def found():
    return {case: one_step(CASES[case], gradients=True, validate=True, replay=True) for case in CASES}


@pytest.mark.parametrize("case", MESHES)
def test_gradients_with_replayed_experts_are_those_of_one_device(found, case):
    here, one = found[case], found["one"]
    assert here.keys() == one.keys()
    for name, value in here.items():
        if name == "real":
            continue
        if "expert_tokens" in name:
            np.testing.assert_array_equal(value, one[name])
        else:
            difference = np.abs(value - one[name]).max(initial=0.0)
            assert difference <= 1e-5 * max(np.abs(one[name]).max(initial=0.0), 1e-12), name


def test_replayed_experts_change_where_tokens_go(found):
    counts = [case["stats['expert_tokens']"] for case in (found["one"], one_step(SMALL, gradients=True))]
    assert (counts[0] != counts[1]).any() and counts[0].sum() == counts[1].sum()
