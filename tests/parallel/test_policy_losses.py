"""Every policy loss on meshes of eight and of four emulated devices is that of one device."""

import numpy as np
import pytest

from tests.parallel.one_step import one_step
from tests.parallel.policy_losses import CONFIGS, every_policy_loss, with_policy_targets

pytestmark = [pytest.mark.slow, pytest.mark.devices(8)]

SMALL = {"model.layers": 3, "model.heads": 8, "train.micro_batches": 2}
CASES = {
    "one": SMALL,
    "data, expert and stage": SMALL | {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2},
    "tensor and context": SMALL | {"parallel.tensor": 2, "parallel.context": 2},
}


@pytest.fixture(scope="module")
def found():
    loss = every_policy_loss, with_policy_targets
    return {case: one_step(CASES[case], gradients=True, loss=loss) for case in CASES}


@pytest.mark.parametrize("case", [case for case in CASES if case != "one"])
def test_terms_metrics_and_gradients_on_a_mesh_are_those_of_one_device(found, case):
    here, one = found[case], found["one"]
    assert here.keys() == one.keys()
    for name, value in here.items():
        if name != "real" and "expert_tokens" not in name:
            difference = np.abs(value - one[name]).max(initial=0.0)
            assert difference <= 1e-5 * max(np.abs(one[name]).max(initial=0.0), 1e-12), name


def test_the_batch_holds_what_the_losses_differ_in(found):
    one = found["one"]
    terms = {name: float(value) for name, value in one.items() if name.startswith("loss['terms']")}
    assert len(terms) == len(CONFIGS) + 1 and len({round(term, 6) for term in terms.values()}) == len(terms)
    clipped = [float(value) for name, value in one.items() if name.endswith("policy/clipped']")]
    assert len(clipped) == 3 and all(0.01 < share < 0.9 for share in clipped)
