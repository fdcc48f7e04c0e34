"""Replayed experts reach their layers on every mesh: steps and held-out losses are those of one device."""

import numpy as np
import pytest

from tests.parallel.eight import steps

SMALL = {"model.layers": 4, "train.micro_batches": 2, "train.batch_size": 8, "do": "gradients validate replay"}
STAGES = {"parallel.stage": 2, "parallel.virtual_stages": 2, "parallel.expert": 2}
CASES = {
    "one": SMALL,
    "not replayed": SMALL | {"do": "gradients"},
    "stages": SMALL | STAGES,
    "autodiff": SMALL | STAGES | {"parallel.executor": "autodiff"},
    "tensor and context": SMALL | {"parallel.tensor": 2, "parallel.context": 2},
}
MESHES = ("stages", "autodiff", "tensor and context")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return steps(tmp_path_factory.mktemp("replay"), CASES)


@pytest.mark.slow
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


@pytest.mark.slow
def test_replayed_experts_change_where_tokens_go(found):
    counts = [np.asarray(found[case]["stats['expert_tokens']"]) for case in ("one", "not replayed")]
    assert (counts[0] != counts[1]).any() and counts[0].sum() == counts[1].sum()
