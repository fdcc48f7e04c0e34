"""The switch of a small model, compiled for an absent TPU: bytes worked out by hand, and a verdict on every phase."""

import json
import math

import pytest

from k2jax.aot import topology

topology.prepare()

from k2jax.aot.compiling import for_tpu  # noqa: E402
from k2jax.aot.report.sync_table import phases_json, phases_table  # noqa: E402
from k2jax.aot.weight_sync import compile_phases, compile_switch  # noqa: E402
from k2jax.config import Config, defaults, resolve, role  # noqa: E402
from k2jax.errors import UserError  # noqa: E402
from k2jax.model import model_specs  # noqa: E402
from k2jax.params import named_specs  # noqa: E402
from tests.aot.test_serving import MODEL  # noqa: E402

TOPOLOGY = "v5p:2x2x2"


def small(stage="rl", **overrides) -> Config:
    config = defaults(stage)
    config.model.update({key: getattr(MODEL, key) for key in ("layers", "dense_layers", "d_model", "heads", "vocab")})
    for group in ("mla", "moe"):
        config.model[group].update({key: getattr(getattr(MODEL, group), key) for key in config.model[group]})
    config.model.update({"dense_ffn": 512, "layers": 5, "tied_head": False, "kernels": "xla"})
    config.data.sequence_length = 256
    config.train.update({"batch_size": 16, "micro_batches": 4})
    config.parallel.update({"data": 2, "stage": 2, "expert": 2})
    config.rl.rollout.update({"data": 2, "expert": 4, "slots": 32, "max_length": 1024})
    config.update_from_flattened_dict(overrides)
    return for_tpu(resolve(config))


def layer_size(spec):
    """Numbers of one layer, or of a weight without layers."""
    return math.prod(spec.shape[1:]) if spec.axes[0] == "layers" else spec.size


@pytest.mark.slow
def test_the_switch_of_a_small_model():
    report = compile_switch(small(), TOPOLOGY)
    specs = dict(named_specs(model_specs(small().model)))
    bytes_of = {name: 4 if spec.role in ("router", "router_bias") else 2 for name, spec in specs.items()}
    assert report.pushed == sum(spec.size * bytes_of[name] for name, spec in specs.items())
    held = {name: spec.size * bytes_of[name] // (4 if "/experts/" in name else 1) for name, spec in specs.items()}
    assert report.hbm.parts["engine's weights"] == sum(held.values())
    assert report.state == report.hbm.parts["master weights"] + report.hbm.parts["optimizer state"]
    assert report.host_seconds == pytest.approx(report.state / 16e9)
    assert (report.training, report.engine) == ({"data": 2, "stage": 2, "expert": 2}, {"data": 2, "expert": 4})
    runs = {name: bucket.runs / len(bucket.weights) for bucket in report.buckets for name in bucket.weights}
    assert set(runs) == set(specs)
    assert {runs[name] for name in specs if name.startswith("moe/")} == {2}  # 4 layers, of two stages at once
    assert {runs[name] for name in specs if not name.startswith("moe/")} == {1}
    for bucket in report.buckets:
        name = bucket.weights[0]
        layers = 2 if name.startswith("moe/") else 1
        expected = layers * layer_size(specs[name]) * bytes_of[name] // (4 if "/experts/" in name else 1)
        assert expected <= bucket.bucket <= expected + layers * 4096 + 1024  # padding of small arrays, and checksums
    assert report.seconds == pytest.approx(report.host_seconds + report.push_seconds) and report.push_seconds > 0
    experts = next(bucket for bucket in report.buckets if "moe/experts/w13" in bucket.weights)
    # The program never holds all experts of a layer on a device: it does not gather and cut.
    whole = 2 * layer_size(specs["moe/experts/w13"]) * 2
    assert experts.temporaries < whole


@pytest.mark.slow
def test_experts_that_go_to_more_devices_than_share_them_in_training_are_never_gathered():
    """Without stages on the way XLA gathers a bucket's layers of all experts on every device: 18 times its arrays."""
    layout = {"parallel.data": 1, "parallel.stage": 4, "parallel.context": 2}
    report = compile_switch(small(**layout, **{"rl.rollout.data": 2, "rl.rollout.expert": 8}), "v5p:2x2x4")
    experts = [each for each in report.buckets if {"moe/experts/w13", "moe/experts/w2"}.intersection(each.weights)]
    assert experts and all(each.temporaries < 4 * each.bucket for each in experts)


@pytest.mark.slow
def test_every_phase_of_an_iteration_compiles():
    roles = {"rl.roles": {"helper": role(checkpoint="runs/elsewhere", slots=64)}}
    report = compile_phases(small(**roles), TOPOLOGY)
    assert report.fits
    policy, helper = report.engines["policy"], report.engines["helper"]
    weights, cache = (policy.decode.hbm.parts[part] for part in ("weights", "cache"))
    assert policy.prefill.hbm.parts["helper's weights"] == weights == helper.decode.hbm.parts["policy's weights"]
    assert helper.decode.hbm.parts["policy's cache"] == cache == policy.prefill.hbm.parts["cache"]
    assert 1.9 * cache < policy.decode.hbm.parts["helper's cache"] < 2 * cache  # beside a scratch page
    assert report.switch.frozen == weights == report.switch.hbm.parts["engine's weights"]
    assert report.switch.host_seconds == pytest.approx((report.switch.state + weights) / 16e9)
    text = phases_table(report)
    for words in (
        "training step",
        "rollout: prefill",
        "rollout: decode",
        "rollout: helper's decode",
        "from training to the rollout",
        "all-to-all",
    ):
        assert words in text
    listed = json.loads(json.dumps(phases_json(report)))
    assert listed["switch_seconds"] == report.switch.seconds
    assert listed["engines"]["helper"]["decode"]["hbm"]["fits"]


def test_another_stage_is_refused():
    with pytest.raises(UserError, match="--mode=sync is for a config of stage rl, not pretrain"):
        compile_phases(small("pretrain"), TOPOLOGY)
