"""Chips and topologies: what is known, and one line for what is not."""

import jax
import pytest

from k2jax.aot import topology
from k2jax.aot.topology import chip_of
from k2jax.chips import CHIPS, PEAK_FLOPS
from k2jax.errors import UserError
from tests.aot.programs import prepare


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    prepare(monkeypatch)


@pytest.mark.parametrize(
    ("name", "count"), [("v5e:2x2", 4), ("v5p:2x2x1", 4), ("v6e:2x2", 4), ("tpu7x:2x2x1", 8), ("v5p:8x8x16", 1024)]
)
def test_topologies_have_their_devices(name, count):
    """A tpu7x chip is two devices. What libtpu calls a device is the name under which its peak is found."""
    devices, chip = topology.devices(name), CHIPS[name.partition(":")[0]]
    assert len(devices) == count
    assert count % chip.devices == 0
    assert {device.device_kind for device in devices} <= set(chip.kinds)
    assert PEAK_FLOPS[devices[0].device_kind] * chip.devices == chip.flops


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5x:2x2", "no TPU generation 'v5x'"),
        ("v5e", "its sides"),
        ("v5e:two", "its sides"),
        ("v5e:7x9", "no topology"),
    ],
)
def test_others_are_refused_in_one_line(name, message):
    with pytest.raises(UserError, match=message) as caught:
        topology.devices(name)
    assert "\n" not in str(caught.value)


def test_the_roofline_of_a_device():
    """A tpu7x device is half a chip."""
    compute, memory = CHIPS["tpu7x"].seconds(2307e12, 7.38e12)
    assert (compute, memory) == (2.0, 2.0)
    assert chip_of("v5e:2x2").seconds(197e12, 0.0) == (1.0, 0.0)
    assert jax.default_backend() == "cpu"
