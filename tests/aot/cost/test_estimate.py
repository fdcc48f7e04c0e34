"""The formulas of a layout: against the traced step, against sums by hand, and in what they refuse."""

from collections import defaultdict
import dataclasses
import functools
import itertools

import pytest

from k2jax.aot import topology
from k2jax.aot.compiling import for_tpu, traced_step
from k2jax.aot.cost import expert_rows
from k2jax.aot.cost.estimate import estimate, place
from k2jax.aot.cost.hbm import loop_buffers, shard_bytes
from k2jax.aot.cost.jaxpr_flops import traced_cost
from k2jax.aot.cost.layer_costs import head_cost, layer_cost
from k2jax.aot.cost.published import published_runs
from k2jax.aot.cost.sweep import layouts, sweep
from k2jax.aot.report import tables
from k2jax.aot.training import dynamic_shares
from k2jax.chips import CHIPS
from k2jax.config import model_preset, replace_keys
from k2jax.config.schema import Config, DataConfig, ParallelConfig, TrainConfig
from k2jax.errors import UserError
from k2jax.model.counts import active_parameters
from pallas_kernels.routed_experts import TooManyCopiesError

TOPOLOGY = "v5p:2x2x2"
CHIP = CHIPS["v5p"]
TINY = replace_keys(
    model_preset("k2"),
    {
        "layers": 5,
        "d_model": 512,
        "heads": 8,
        "mla.q_lora_rank": 256,
        "mla.kv_lora_rank": 128,
        "dense_ffn": 2048,
        "moe.expert_ffn": 512,
        "moe.experts": 16,
        "moe.active_experts": 4,
        "vocab": 4096,
    },
)
WITHOUT_STAGES = {"stage": 1, "virtual_stages": 1, "data": 4, "micro_batches": 2}


@functools.cache
def devices(name=TOPOLOGY):
    topology.prepare()
    return topology.devices(name)


def config(model=TINY, rows=16, sequence=1024, micro_batches=4, train=(), **parallel):
    return for_tpu(
        Config(
            model=model,
            parallel=ParallelConfig(**{"data": 2, "expert": 2, "stage": 2, "virtual_stages": 2, **parallel}),
            train=TrainConfig(batch_size=rows, micro_batches=micro_batches, **dict(train)),
            data=dataclasses.replace(DataConfig(), sequence_length=sequence),
        )
    )


@pytest.mark.parametrize("changed", [{}, {**WITHOUT_STAGES, "train": {"remat": "full"}}])
def test_it_agrees_with_the_traced_step(changed):
    """Of the real step; within 10 %: the attention kernel computes whole blocks of the causal triangle."""
    given = config(**changed)
    step, formulas = traced_step(given, TOPOLOGY), estimate(given, CHIP, devices())
    jaxpr = step.traced.jaxpr.jaxpr
    traced = traced_cost(jaxpr, 8, dynamic_shares(step, given))
    assert formulas.flops == pytest.approx(traced.flops, rel=0.1)
    parts = formulas.hbm.parts
    assert parts["parameters"] == pytest.approx(shard_bytes(step.state.params), rel=1e-6)
    optimizer = shard_bytes(step.state) - shard_bytes(step.state.params)
    assert parts["optimizer state"] == pytest.approx(optimizer, rel=1e-3)
    assert step.empty == formulas.hbm.empty
    held = loop_buffers(jaxpr)
    if step.schedule:
        assert parts["gradients"] == pytest.approx(held.gradients, rel=0.05)
        assert formulas.bubble == pytest.approx(step.schedule.bubble(), abs=0.02)


def test_a_layer_has_six_flops_a_parameter_and_causal_attention():
    """Forward and backward of all layers and ranks together are what MFU counts, but for the attention's backward."""
    tokens, sequence = 4096, 4096
    given = config(sequence=sequence)
    one = layer_cost(given, "moe", tokens, 4)
    k2 = dataclasses.replace(TINY, layers=1, dense_layers=0)
    scores = tokens * 8 * sequence / 2
    matrices = one.forward.flops - 2 * scores * (192 + 128)
    edges = 127 / 4096 * 2 * tokens * 4 * 3 * 512 * 512  # of the 4,096 rows of each expert, in sub-blocks of 128
    wanted = 2 * tokens * active_parameters(k2, embeddings=False) + edges
    assert matrices == pytest.approx(wanted, rel=2e-3)  # norms have none
    assert one.backward.flops == pytest.approx(2 * matrices + 2 * scores * (4 * 192 + 3 * 128))
    head = head_cost(TINY, tokens, shards=2)
    assert (head.forward.flops, head.backward.flops) == (tokens * 512 * 4096, 3 * tokens * 512 * 4096)


def test_products_move_weights_once_and_rows_in_and_out():
    head = head_cost(TINY, 100)
    assert head.forward.bytes == 2 * (512 * 4096 + 100 * (512 + 4096))


def test_what_recomputing_costs_and_saves():
    policies = ("none", "selective", "full")
    none, selective, full = (estimate(config(train={"remat": remat}), CHIP, devices()) for remat in policies)
    assert 1.0 < selective.roofline.compute / none.roofline.compute < 1.05
    assert 1.1 < full.roofline.compute / none.roofline.compute < 1.25  # five passes for four, but no down projection
    kept = [one.hbm.parts["activations"] for one in (none, selective, full)]
    assert kept == sorted(kept, reverse=True)
    assert selective.collective_bytes == none.collective_bytes
    assert full.collective_bytes["ragged-all-to-all expert"] > none.collective_bytes["ragged-all-to-all expert"]


def test_micro_batches_shrink_the_bubble_and_rounds_too():
    bubble = lambda **given: estimate(config(**given), CHIP, devices()).bubble  # noqa: E731
    assert bubble(micro_batches=2) > bubble(micro_batches=4)
    assert bubble(virtual_stages=1) > bubble(virtual_stages=2)
    # M V + S - 1 ticks of which M V are needed.
    assert bubble(micro_batches=4) == pytest.approx(1 - 8 / (8 + 1))
    assert bubble(**WITHOUT_STAGES) == 0


def test_gathering_layer_by_layer_sends_more_and_keeps_less():
    given = config(**WITHOUT_STAGES, train={"remat": "full"})
    once, each = (estimate(given, CHIP, devices(), gather_per_layer=each) for each in (False, True))
    gathered = lambda one: sum(size for kind, size in one.collective_bytes.items() if kind.startswith("all-gather"))  # noqa: E731
    assert gathered(each) == pytest.approx(2 * 2 * gathered(once))  # two passes of two micro-batches
    assert each.hbm.parts["compute copy"] == pytest.approx(once.hbm.parts["compute copy"] * 2 / 5)


def test_empty_slots_of_a_pipeline_take_what_a_layer_takes():
    """5 layers in 2 stages of 3: half an empty slot a device, its weights cut in 4 at rest, experts in 2 in use."""
    attention = 512 * 256 + 256 * 8 * 192 + 512 * (128 + 64) + 128 * 8 * 256 + 8 * 128 * 512
    experts, shared, router, vectors = 16 * 3 * 512 * 512, 3 * 512 * 512, 512 * 16, 2 * 512 + 256 + 128
    at_rest = 4 * ((attention + experts + shared) / 4 * 2 + router / 4 * 3 + vectors * 3 + 16)
    copy = 2 * (attention + experts / 2 + shared + vectors) + 4 * (router + 16)
    gradients = 4 * (attention + experts / 2 + shared + router + vectors + 16)
    model = dataclasses.replace(TINY, layers=6)
    found = estimate(config(model=model, virtual_stages=3), CHIP, devices()).hbm
    assert found.empty == pytest.approx((at_rest + copy + gradients) / 2)
    assert tables.as_json(found)["empty_layer_slots"] == found.empty
    assert "of which empty layer slots  " in tables.hbm_table(found)
    full = estimate(config(model=model, stage=1, virtual_stages=1, data=4, micro_batches=2), CHIP, devices()).hbm
    assert full.empty == 0 and "empty_layer_slots" not in tables.as_json(full)
    assert "empty" not in tables.hbm_table(full)


def test_a_sweep_is_of_layouts_that_can_be_sorted_by_time():
    found = sweep(config(), CHIP, devices())
    sizes = [(one.config.parallel.stage, one.config.parallel.expert, one.config.parallel.data) for one in found]
    assert all(stage * expert * data == 8 for stage, expert, data in sizes)
    assert {1, 2, 4} == {stage for stage, _, _ in sizes}
    assert all(a.estimate.roofline.seconds <= b.estimate.roofline.seconds for a, b in itertools.pairwise(found))
    assert all(one.estimate.hbm.fits for one in found)
    assert "--config.parallel.stage=" in found[0].flags and "--config.train.remat=" in found[0].flags


def test_a_sweep_leaves_out_layouts_with_more_copies_of_tokens_than_the_kernels_sort(monkeypatch):
    long = config(sequence=32_768, rows=8, expert_copies=2.0)
    refusals = []
    original = expert_rows.kept_rows

    def fewer_copies(tokens, *arguments, **options):
        if tokens > 100_000:
            refusals.append(tokens)
            raise TooManyCopiesError("too many copies")
        return original(tokens, *arguments, **options)

    monkeypatch.setattr(expert_rows, "kept_rows", fewer_copies)
    expert_rows._kept_rows.cache_clear()
    found = sweep(long, CHIP, devices())
    expert_rows._kept_rows.cache_clear()
    parts = defaultdict(set)
    for layout in found:
        mesh, train = layout.config.parallel, layout.config.train
        parts[mesh.stage, mesh.virtual_stages, mesh.expert, train.micro_batches].add(mesh.expert_chunks)
    assert refusals and {2, 4} in parts.values()  # smaller parts of an exchange stay where the whole is too much
    with pytest.raises(UserError, match="131,072 tokens that a device receives, too many copies"):
        expert_rows.expert_buffers(long, 65_536, 2)


def test_fp8_and_offloading_are_tried_only_where_a_policy_does_not_fit_without():
    roomy = sweep(config(), CHIP, devices())
    assert not any(layout.config.train.offload or layout.config.train.store_fp8 for layout in roomy)
    assert {layout.config.parallel.expert_chunks for layout in roomy if layout.config.parallel.expert > 1} == {1, 2, 4}
    assert {layout.config.parallel.expert_chunks for layout in roomy if layout.config.parallel.expert == 1} == {1}
    tight = dataclasses.replace(CHIP, hbm_bytes=sorted(layout.estimate.hbm.total for layout in roomy)[len(roomy) // 4])
    stored = [layout for layout in sweep(config(), tight, devices()) if layout.recomputation.endswith("offload")]
    assert {"selective, offload", "selective, fp8, offload"} <= {layout.recomputation for layout in stored}
    for layout in stored[::10]:
        plain = dataclasses.replace(layout.config.train, store_fp8=(), offload=())
        assert not estimate(dataclasses.replace(layout.config, train=plain), tight, devices()).hbm.fits
        assert "--config.train.offload=\"('layer_input'" in layout.flags and layout.estimate.host_bytes > 0


def test_parts_of_an_exchange_hide_all_but_one_of_them():
    given = {"sequence": 4096, "rows": 64}
    one, two, four = (estimate(config(expert_chunks=parts, **given), CHIP, devices()) for parts in (1, 2, 4))
    network, sent = place(config(**given), CHIP, devices()).network, one.collective_bytes["ragged-all-to-all expert"]
    seconds = network.collective("ragged-all-to-all", ("expert",), sent).seconds
    assert one.roofline.exposed - two.roofline.exposed == pytest.approx(seconds / 2)
    assert two.roofline.exposed - four.roofline.exposed == pytest.approx(seconds / 4)
    assert one.roofline.network == pytest.approx(two.roofline.network)
    assert one.roofline.compute < two.roofline.compute < four.roofline.compute  # more partly filled row blocks
    assert one.hbm.parts["activations"] == pytest.approx(two.hbm.parts["activations"], rel=0.01)
    dense = [config(expert_chunks=parts, expert_backend="dense", **given) for parts in (1, 2)]
    first, second = (estimate(layout, CHIP, devices()).roofline.exposed for layout in dense)
    assert first == second  # not asynchronous


def test_only_divisors_of_the_experts_are_tried():
    odd = replace_keys(TINY, {"moe.experts": 12})
    assert {one.parallel.expert for one in layouts(config(model=odd), 8)} == {1, 2, 4}
    dense = dataclasses.replace(TINY, dense_layers=5)
    assert {one.parallel.expert for one in layouts(config(model=dense), 8)} == {1}


def test_what_cannot_be_is_refused_in_one_line():
    for given, message in (
        (config(expert=3, data=0, stage=1, virtual_stages=1), "devices"),
        (config(model=replace_keys(TINY, {"moe.experts": 15})), "15 experts"),
        (config(stage=8, data=1, expert=1), "virtual_stages|stage"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            estimate(given, CHIP, devices())
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"no layout of 3 rows over 8 devices; raise config.train.batch_size"):
        sweep(config(rows=3, micro_batches=1), CHIP, devices())
    k2 = config(model=model_preset("k2"), sequence=4096)
    with pytest.raises(UserError, match=r"the smallest takes \d+ GB of 95 GB a device; about \d+ devices would do"):
        sweep(k2, CHIP, devices())
    assert estimate(k2, CHIP, devices()).hbm.total > 95e9


def test_the_published_runs_are_the_error_bar():
    deepseek, k2 = published_runs()
    assert (deepseek.mfu, k2.mfu) == (0.2656, 0.0643)
    time = deepseek.estimate.roofline
    # 4096 rows of 4096 tokens: 612.66 TFLOP/s a chip in 26.79 s, as published, head included.
    assert deepseek.estimate.tokens == 4096 * 4096
    assert time.model_flops / 26.79 / 256 == pytest.approx(612.66e12, rel=0.04)
    assert k2.estimate.tokens == 512 * 16 * 1024
    assert deepseek.ratio == pytest.approx(time.mfu() / 0.2656)
    assert all(1 / 4 < run.ratio < 4 for run in (deepseek, k2))
