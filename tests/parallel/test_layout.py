"""Layouts: where weights lie, what is refused, and what a device holds."""

import math

from jax.sharding import AbstractMesh
import numpy as np
import pytest

from k2jax.config import defaults, resolve
from k2jax.errors import UserError
from k2jax.parallel import newton_schulz
from k2jax.parallel.layout import entries, make_layout, padded_shape
from k2jax.parallel.mesh import axis_sizes
from k2jax.parallel.torus import device_grid, torus_grid
from k2jax.params import count, named_specs
from tests.parallel.golden import FILE, MESHES, SHARED, layout_of, leaves, text


def test_every_weight_of_every_preset_lies_where_it_did():
    assert text() == FILE.read_text(), "if this is meant, python -m tests.parallel.golden writes the file anew"


@pytest.mark.parametrize(("preset", "sizes"), [*MESHES.items(), *SHARED.items()])
def test_no_axis_cuts_a_weight_twice_and_parts_at_rest_are_equal(preset, sizes):
    layout = layout_of(preset, *sizes)
    for (name, spec), rest, compute in zip(
        named_specs(layout.specs), leaves(layout.storage), leaves(layout.compute), strict=True
    ):
        cut = [axis for axes in entries(spec, rest) for axis in axes]
        assert len(cut) == len(set(cut)), name
        for size, axes in zip(spec.shape, entries(spec, rest), strict=True):
            assert size % math.prod(layout.mesh.shape[axis] for axis in axes) == 0, name
        for own, more in zip(entries(spec, compute), entries(spec, rest), strict=True):
            padded = padded_shape(spec, compute, layout.mesh) != spec.shape
            assert padded or more[: len(own)] == own, name  # a gather leads from rest to compute


@pytest.mark.parametrize("sizes", [MESHES["k2"], SHARED["k2"]])
def test_kimi_k2_at_rest_is_spread_over_all_devices(sizes):
    layout = layout_of("k2", *sizes)
    held = sum(
        spec.size // math.prod(layout.mesh.shape[a] for axes in entries(spec, rest) for a in axes)
        for (_, spec), rest in zip(named_specs(layout.specs), leaves(layout.storage), strict=True)
    )
    slots = 64 / 60  # empty ones are held too
    assert held <= 1.002 * slots * count(layout.logical) / layout.mesh.size


def test_empty_slots_are_numbered_minus_one():
    layout = layout_of("k2", *MESHES["k2"])
    spec = dict(named_specs(layout.specs))["moe/ffn_norm"]
    assert spec.layer_numbers.shape == (4, 16, 1) and (spec.layer_numbers == -1).sum() == 4
    assert spec.layer_numbers.ravel()[:60].tolist() == list(range(1, 61))


@pytest.mark.parametrize(
    ("keys", "devices", "message"),
    [
        ({"expert": 10}, 10, "384 experts do not divide over 10 of the mesh axis expert; 8 or 12 would"),
        ({"stage": 16}, 16, "virtual_stages 1; parallel.virtual_stages=2 or 4 would"),
        ({"stage": 64}, 64, "60 moe layers do not make equal chunks .* parallel.stage=30 or 60 would"),
        ({"virtual_stages": 2}, 1, "virtual_stages 2 needs config.parallel.stage above 1"),
        ({"stage": 4, "data": 3}, 16, "needs 12 devices, there are 16; parallel.data=4 would"),
        ({"stage": 5}, 16, "needs 15 devices, there are 16$"),
        ({"tensor": 3}, 3, "64 heads do not divide over 3 of the mesh axis tensor; 2 or 4 would"),
        ({"tensor": 32}, 32, "2048 into parts that are no multiples of 128, .* parallel.tensor=16 would do"),
        ({"tensor": 2, "data": 4}, 16, "x stage 1 x tensor 2 needs 8 devices, there are 16; parallel.data=8 would"),
        ({"context": 3}, 3, "context 3 does not divide config.data.sequence_length 512; parallel.context=2 or 4"),
        ({"context": 64, "tensor": 2}, 128, "context 64 does not divide the 32 heads of a device; .*=32 would"),
        (
            {"context": 8, "stage": 15},
            120,
            "does not divide the 5 heads of a stage in the leading dense layers; .*=5 would",
        ),
        ({}, 16, "batch_size 8 gives no row to each of 16 x 1 .* raise it to 16"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(keys, devices, message):
    config = defaults("pretrain", model="k2")
    config.parallel.update(keys)
    config.train.batch_size = 8 if not keys else 64
    config.model.kernels = "pallas"
    with pytest.raises(UserError, match=message) as error:
        sizes = axis_sizes(resolve(config), devices)
        make_layout(resolve(config), AbstractMesh(tuple(sizes.values()), tuple(sizes)))
    assert "\n" not in str(error.value)


def test_grouped_keys_divide_over_context_too():
    with pytest.raises(UserError, match=r"context 16 does not divide the 8 kv_heads of a device; .*=8 would"):
        layout_of("llama3.2_1b", 2, 1, 1, 1, context=16)


@pytest.mark.parametrize("preset", MESHES)
def test_muons_matrices_of_one_shape_are_cut_along_one_side(preset):
    layout = layout_of(preset, *MESHES[preset])
    kinds = {}
    for (_, spec), placed in zip(named_specs(layout.specs), leaves(layout.storage), strict=True):
        if spec.role == "matrix" and "experts" not in spec.axes:
            cut = newton_schulz._cut(spec, placed, layout)
            kinds.setdefault(tuple(sorted(map(spec.size_of, (spec.inputs, spec.outputs)))), set()).add(cut.exchanges)
    assert all(len(found) == 1 and len(*found) == 1 for found in kinds.values()), kinds  # one all-to-all, and one back


class Chip:
    """A device of a torus."""

    platform = "tpu"

    def __init__(self, *place, slice_index=0):
        self.coords, self.core_on_chip, self.slice_index = place[:3], place[3], slice_index


def torus(*sides):
    return [Chip(*place) for place in np.ndindex(*sides)]


def test_only_data_goes_over_the_network_between_slices():
    chips = [Chip(*place, slice_index=one) for one in (1, 0) for place in np.ndindex(2, 2, 4, 1)]
    sizes = {"data": 4, "stage": 4, "expert": 2}
    grid = device_grid(chips, sizes)
    assert grid.shape == (4, 4, 2) and len({id(chip) for chip in grid.flat}) == 32
    slices = np.vectorize(lambda chip: chip.slice_index)(grid)
    assert (slices == np.array([0, 0, 1, 1])[:, None, None]).all()
    with pytest.raises(UserError, match=r"data 1 does not divide over 2 slices.*multiple of 2$"):
        device_grid(chips, sizes | {"data": 1, "stage": 16})


def test_some_devices_of_a_slice_are_used_in_any_order():
    grid = device_grid(torus(2, 4, 1, 1)[:3], {"data": 1, "expert": 3})
    assert grid.shape == (1, 3) and len({id(chip) for chip in grid.flat}) == 3


def test_experts_form_blocks_and_stages_rings():
    grid = torus_grid(torus(8, 8, 16, 1), {"data": 4, "stage": 16, "expert": 16}, ("data", "stage", "expert"))
    assert grid.shape == (4, 16, 16) and len({id(chip) for chip in grid.flat}) == 1024
    for group in grid.reshape(-1, 16):
        places = np.array([chip.coords for chip in group])
        spans = np.ptp(places, axis=0) + 1
        assert spans[2] == 1 and max(span / 2 if span == 8 else span for span in spans) == 4  # a whole ring counts half
    for ring in grid.transpose(0, 2, 1).reshape(-1, 16):
        places = np.array([chip.coords for chip in ring])
        hops = np.abs(np.diff(np.concatenate([places, places[:1]]), axis=0)) % 15
        assert (hops.sum(1) == 1).all() or (hops.sum(1) == [*[1] * 15, 0]).all()


def test_who_shares_a_layer_or_a_row_are_neighbours():
    sizes = {"data": 2, "stage": 4, "expert": 4, "context": 2, "tensor": 2}
    grid = torus_grid(torus(4, 4, 8, 1), sizes, tuple(sizes))
    for group in grid.reshape(-1, 4):
        places = np.array([chip.coords for chip in group])
        assert sorted(np.ptp(places, axis=0)) == [0, 1, 1]
        assert np.abs(places[0] - places[1]).sum() == np.abs(places[2] - places[3]).sum() == 1


@pytest.mark.parametrize("sides", [(2, 4, 1, 1), (4, 4, 4, 2), (2, 2, 1, 2)])
def test_any_slice_is_used_whole(sides):
    count_ = math.prod(sides)
    grid = torus_grid(torus(*sides), {"data": count_ // 4, "stage": 2, "expert": 2}, ("data", "stage", "expert"))
    assert len({id(chip) for chip in grid.flat}) == count_
