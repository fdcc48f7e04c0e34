"""Names of slices: Google's tables, libtpu's own topologies, round trips, and errors that name what exists."""

import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.aot import topology
from k2jax.chips import CHIPS
from k2jax.pods.slices import GENERATIONS, Slice, _shapes, parse_slice
from tests.refusal import refused

TABLES = {  # cloud.google.com/tpu/docs/v5p, v5e, v6e, tpu7x: type, topology, chips, hosts
    "v5p-8": ("2x2x1", 4, 1),
    "v5p-16": ("2x2x2", 8, 2),
    "v5p-64": ("2x4x4", 32, 8),
    "v5p-128": ("4x4x4", 64, 16),
    "v5p-256": ("4x4x8", 128, 32),
    "v5p-512": ("4x8x8", 256, 64),
    "v5p-1024": ("8x8x8", 512, 128),
    "v5p-2048": ("8x8x16", 1024, 256),
    "v5p-4096": ("8x16x16", 2048, 512),
    "v5p-8192": ("16x16x16", 4096, 1024),
    "v5p-12288": ("16x16x24", 6144, 1536),
    "v5litepod-1": ("1x1", 1, 1),
    "v5litepod-4": ("2x2", 4, 1),
    "v5litepod-8": ("2x4", 8, 1),
    "v5litepod-16": ("4x4", 16, 4),
    "v6e-8": ("2x4", 8, 1),
    "v6e-32": ("4x8", 32, 8),
    "v6e-256": ("16x16", 256, 64),
    "tpu7x-128": ("4x4x4", 64, 16),
}


@pytest.mark.parametrize("name", TABLES)
def test_googles_tables(name):
    found = parse_slice(name)
    assert (found.topology, found.chips, found.vms) == TABLES[name]
    assert found.accelerator_type == name and found.has_usual_shape


def test_our_name_of_v5e_and_googles_are_one():
    assert parse_slice("v5e-8") == parse_slice("v5litepod-8") == parse_slice("v5e:2x4") == parse_slice("v5litepod:2x4")


@given(st.sampled_from([(g, s) for g in GENERATIONS.values() for s in _shapes(g)]))
def test_every_shape_is_read_back_and_its_pods_hold_all_chips(case):
    generation, shape = case
    slice_ = Slice(generation, shape)
    assert parse_slice(str(slice_)) == slice_
    assert parse_slice(slice_.accelerator_type).chips == slice_.chips <= generation.chips
    assert slice_.nodes * slice_.chips_per_node == slice_.chips
    if slice_.has_usual_shape:
        assert parse_slice(slice_.accelerator_type) == slice_


def test_libtpu_knows_the_same_topologies():
    assert set(GENERATIONS) == set(CHIPS)
    topology.prepare()
    for name in ("v5e:2x2", "v5e:4x8", "v6e:16x16", "v5p:2x2x1", "v5p:8x8x16", "tpu7x:4x4x8"):
        devices, slice_ = topology.devices(name), parse_slice(name)
        assert len(devices) == slice_.chips * CHIPS[slice_.generation.name].devices, name
        assert len({device.process_index for device in devices}) == slice_.nodes == slice_.vms, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5q-8", "no TPU generation 'v5q' in --tpu 'v5q-8'; did you mean 'v5p'?"),
        ("tpu7-128", "did you mean 'tpu7x'?"),
        ("v5p-2000", "the number counts TensorCores, 2 a chip); the nearest are v5p-1920 and v5p-2048"),
        ("v5p-2049", "no slice v5p-2049"),
        ("v6e-12", "the number counts chips); the nearest are v6e-8 and v6e-16"),
        ("v5p:8x16x8", "no topology v5p:8x16x8; sides ascend: v5p:8x8x16"),
        ("v5p:4x4x5", "ascending multiples of 4 up to 6144 chips; the nearest in size is v5p:4x4x4"),
        ("v5p:16x16x28", "the nearest in size is v5p:16x16x24"),
        ("v5e:3x3", "v5e has 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16; the nearest in size is v5e:2x4"),
        ("v5e:2x2x1", "no topology v5e:2x2x1"),
        ("8", "neither a type such as v5p-2048 nor a topology such as v5p:8x8x16"),
        ("v5p-8:2x2x1", "neither"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(text, message):
    with refused(re.escape(message)):
        parse_slice(text)
