"""The fixed estimate against arithmetic by hand."""

import dataclasses

import pytest

from k2jax.aot.cost.roofline import CollectiveTime, Work, model_flops_per_token, roofline
from k2jax.chips import CHIPS, Chip
from k2jax.config import model_preset

CHIP = Chip(
    ("test",),
    devices=1,
    flops=1e12,
    hbm_bytes=1e9,
    hbm_bandwidth=1e11,
    vmem_bytes=1,
    link_bandwidth=1e9,
    torus=3,
    core_bandwidth=0.0,
    host_bandwidth=1e10,
    host_chips=4,
    network_bandwidth=1e9,
)


def estimate(**changed):
    given = {
        "chip": CHIP,
        "devices": 4,
        "work": [Work(3, 0.7e12, 0.04e12), Work(2, 0.07e12, 0.08e12)],
        "optimizer": Work(1, 0.07e12, 0.16e12),
        "traffic": [CollectiveTime(0.4, 0.0), CollectiveTime(0.35, 0.25)],
        "model_flops": 8e12,
    }
    return roofline(**{**given, **changed})


def test_every_term():
    time = estimate()
    assert (time.compute, time.memory) == pytest.approx((3 * 1.0 + 2 * 0.1, 3 * 0.5 + 2 * 1.0))
    assert time.ticks == pytest.approx(3 * 1.0 + 2 * 1.0)  # tick by tick, not max(3.2, 3.5)
    assert (time.network, time.exposed) == pytest.approx((0.75, 0.5))
    assert time.optimizer == pytest.approx(2.0)
    assert time.seconds == pytest.approx(5.0 + 0.5 + 2.0)


def test_the_figures_beside_it():
    time = estimate()
    assert time.no_overlap == pytest.approx(3.2 + 3.5 + 0.75 + 2.0)
    assert time.full_overlap == pytest.approx(3.5 + 2.0)
    assert estimate(traffic=[CollectiveTime(9.0, 9.0)]).full_overlap == pytest.approx(11.0)
    assert time.full_overlap <= time.seconds <= time.no_overlap


def test_a_tick_waits_for_the_host():
    time = estimate(work=[Work(3, 0.7e12, 0.04e12, 1.6e10), Work(2, 0.07e12, 0.08e12, 0.4e10)])
    assert time.host == pytest.approx(3 * 2.0 + 2 * 0.5)  # 80 % of 10 GB/s
    assert time.ticks == pytest.approx(3 * 2.0 + 2 * 1.0)
    assert time.no_overlap == pytest.approx(3.2 + 3.5 + 7.0 + 0.75 + 2.0)
    assert time.full_overlap == pytest.approx(7.0 + 2.0)


def test_mfu_is_of_the_peak_of_all_devices():
    time = estimate()
    assert time.mfu() == pytest.approx(8e12 / (4 * 1e12 * 7.5))
    assert time.mfu(2.0) == pytest.approx(1.0)
    half = estimate(chip=dataclasses.replace(CHIP, devices=2))
    assert half.peak == pytest.approx(2e12)  # four devices are two chips
    assert half.compute == pytest.approx(2 * time.compute)


def test_model_flops_of_k2():
    """32.6 B active parameters (Kimi K2, table 2) less embedding and head, which have 7,168 x 163,840 each."""
    k2 = model_preset("k2")
    attention = 6 * 61 * 64 * (192 + 128) * 4096 / 2
    active = (model_flops_per_token(k2, 4096) - attention) / 6
    assert active + 2 * 7168 * 163840 == pytest.approx(32.6e9, rel=0.01)
    assert CHIPS["v5p"].link_bandwidth * 12 == 1200e9  # a chip's six links, both ways, as documented
