"""Bytes and seconds of a broadcast, worked out by hand for four hosts."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.aot import topology

topology.prepare()

from k2jax.aot.cost.broadcast_cost import broadcast_report  # noqa: E402
from k2jax.aot.report.sync_table import _broadcast_table, _broadcast_title  # noqa: E402
from k2jax.chips import CHIPS  # noqa: E402
from k2jax.rl.broadcast.pieces import CHUNK  # noqa: E402


def test_a_broadcast_over_four_hosts():
    """Two groups of eight chips, two hosts each; 64 experts of 10^9 numbers, and 10^9 numbers that all have."""
    devices = np.array(topology.devices("v5p:2x2x4")).reshape(2, 8)
    mesh = jax.sharding.Mesh(devices, ("data", "expert"))
    experts = jax.NamedSharding(mesh, jax.P("expert"))
    whole = jax.NamedSharding(mesh, jax.P())
    targets = {
        "experts": jax.ShapeDtypeStruct((32, 10**9), jnp.bfloat16, sharding=experts),
        "embed": jax.ShapeDtypeStruct((10**9,), jnp.bfloat16, sharding=whole),
    }
    report = broadcast_report(targets, {"experts": 2, "embed": 1}, mesh, CHIPS["v5p"])
    assert report.hosts == 4 and report.host_network == 25e9
    full, own = report.ways
    assert full.received == 130e9 and full.sent == 130e9 / 4 and full.chain == 4
    assert full.network == pytest.approx(5.2)
    # A chip has 8 experts of 2 GB; a host 32 and what all have.
    assert own.received == 66e9 and own.chain == 2
    assert own.sent == 2 * 66e9 / 4 and own.network == pytest.approx(66 / 25)
    for way in report.ways:
        assert way.to_host == way.to_device == pytest.approx(18 / 16)
        assert way.latency == way.chain * CHUNK / 25e9
        assert way.seconds == pytest.approx(way.network + way.latency)
        assert way.apart == pytest.approx(way.network + 2 * 18 / 16 + way.latency)
    text = _broadcast_table(SimpleNamespace(broadcast=report))
    rows = [line.split() for line in text.splitlines()]
    assert rows[-2][:4] == ["the", "full", "set", "130"] and rows[-1][:3] == ["its", "shard", "66.0"]
    assert "from 4 of the trainer, 25.0 GB/s a host" in _broadcast_title(SimpleNamespace(broadcast=report))
