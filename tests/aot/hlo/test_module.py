"""A program compiled by libtpu, read back: loops, products and collectives against numbers worked out by hand."""

import pytest

from k2jax.aot.cost.jaxpr_flops import DynamicShares, traced_cost
from k2jax.aot.hlo.collective_ops import collectives
from k2jax.aot.hlo.module import HloModule, Shape, shapes
from k2jax.aot.hlo.replica_groups import mesh_axes
from k2jax.aot.program import compile_for_tpu
from tests.aot.programs import HEAD, HIDDEN, LAYERS, SHAPE, TICKS, TOKENS, WIDTH, program

BFLOAT16, FLOAT32 = 2, 4
KNOWN = DynamicShares({TICKS: 1 / 3})  # the branch of every third tick
LAYER_FLOPS = 2 * 2 * TOKENS * WIDTH * HIDDEN
TICK_FLOPS = LAYERS * LAYER_FLOPS + 2 * TOKENS * WIDTH * HIDDEN + 2 * TOKENS * WIDTH * HEAD / 3


@pytest.fixture(scope="module")
def text():
    return compile_for_tpu(program().traced)[0].as_text()


def test_products_count_as_often_as_their_loops_run(text):
    read = HloModule(text, KNOWN)
    optimizer = 2 * HEAD * WIDTH * HEAD
    # XLA merges the eight devices' equal products of the optimizer into none or one: at most that much is open.
    assert read.flops(read.entry) == pytest.approx(TICKS * TICK_FLOPS, abs=optimizer)


def test_the_traced_and_the_compiled_program_agree(text):
    read = HloModule(text, KNOWN)
    traced = traced_cost(program().traced.jaxpr.jaxpr, 8, KNOWN)
    assert read.flops(read.entry) == pytest.approx(traced.flops, rel=1e-3)
    always = HloModule(text)
    assert always.flops(always.entry) - read.flops(read.entry) == pytest.approx(
        TICKS * 2 * TOKENS * WIDTH * HEAD * 2 / 3
    )


def test_every_collective_with_its_axes_bytes_and_count(text):
    found, unknown = collectives(HloModule(text, KNOWN), 8)
    rows = [(one.kind, mesh_axes(one.groups, list(SHAPE.items())), one.dtype, one.bytes, one.count) for one in found]
    weights = LAYERS * WIDTH * HIDDEN
    assert sorted(row for row in rows if row[3] > 1 << 16) == [
        ("all-gather", "data", "bf16", BFLOAT16 * weights, 1),
        ("all-gather", "data", "bf16", BFLOAT16 * weights, 1),
        ("all-reduce", "data+expert", "f32", FLOAT32 * (WIDTH * HEAD + 1), 1),  # with the loss in the same call
        ("all-to-all", "expert", "bf16", BFLOAT16 * TOKENS * HIDDEN, TICKS * LAYERS),
        ("collective-permute", "stage", "bf16", BFLOAT16 * TOKENS * WIDTH, TICKS),
        ("reduce-scatter", "data", "f32", FLOAT32 * weights, 1),
    ]
    assert [one.asynchronous for one in found if one.kind == "collective-permute"] == [True]
    assert unknown == 0


def test_what_runs_between_start_and_done_is_counted(text):
    read = HloModule(text, KNOWN)
    sends = [one for one in collectives(read, 8)[0] if one.kind == "collective-permute"]
    assert all(0 <= one.flops <= TICK_FLOPS * 1.01 for one in sends)
    body = next(
        c for c in read.computations.values() if any("collective-permute-start" in i.opcode for i in c.instructions)
    )
    names = [one.name for one in body.instructions if one.opcode.startswith("collective-permute")]
    between = body.instructions[body.place(names[0]) + 1 : body.place(names[1])]
    products = sum(times * read.flops(inner.name) for one in between for inner, times in read.called(body, one))
    assert sends[0].flops == pytest.approx(products) and products > LAYER_FLOPS / 2


LOOP = """HloModule m, is_scheduled=true

%cond (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], f32[4]) parameter(0)
  %n = s32[]{:T(128)} constant(BOUND)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %c = s32[]{:T(128)} copy(%i)
  ROOT %lt = pred[] compare(%c, %n), direction=LT
}

%body (p.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.1 = (s32[]{:T(128)}, f32[4]{0:T(128)}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %x = f32[4] get-tuple-element(%p.1), index=1
  %one = s32[] constant(STEP)
  %next = s32[] add(%i.1, %one)
  %sum = f32[4] all-reduce(%x), replica_groups=[2,2]<=[4], to_apply=%add
  ROOT %t = (s32[], f32[4]) tuple(%next, %sum)
}

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4] parameter(0)
  %start = s32[] constant(START)
  %t.1 = (s32[], f32[4]) tuple(%start, %x.1)
  %w = (s32[], f32[4]) while(%t.1), condition=%cond, body=%bodyNOTED
  ROOT %r = f32[4] get-tuple-element(%w), index=1
}
"""


@pytest.mark.parametrize(
    ("bound", "start", "step", "noted", "runs"),
    [(7, 0, 1, "", 7), (7, 1, 1, "", 6), (8, 0, 3, "", 3), (5, 5, 1, "", 0), (7, 0, 1, "9", 9)],
)
def test_loops_count_from_their_start_by_their_step(bound, start, step, noted, runs):
    note = f', backend_config={{"known_trip_count":{{"n":"{noted}"}}}}' if noted else ""
    text = (
        LOOP.replace("BOUND", str(bound)).replace("START", str(start)).replace("STEP", str(step)).replace("NOTED", note)
    )
    found, unknown = collectives(HloModule(text), 4)
    assert [(one.kind, one.bytes, one.groups, one.count) for one in found] == [
        ("all-reduce", 16, ((0, 1), (2, 3)), runs)
    ]
    assert unknown == 0


def test_a_loop_whose_length_is_data_is_counted_once_and_reported():
    text = (
        LOOP.replace("constant(BOUND)", "custom-call()").replace("START", "0").replace("STEP", "1").replace("NOTED", "")
    )
    found, unknown = collectives(HloModule(text), 4)
    assert found[0].count == 1 and unknown == 1


PART_OF_FUSIONS = '"async_collective_fusion_config":{"flag_start":"-1"}'

FUSED = """HloModule m, is_scheduled=true

%first (a: bf16[8,16]) -> (bf16[8,16], bf16[32,16]) {
  %a = bf16[8,16] parameter(0)
  %ag = bf16[32,16] all-gather(%a), CONFIG
  ROOT %s = (bf16[8,16], bf16[32,16]) custom-call(%ag), custom_call_target="AsyncCollectiveStart"
}

%middle (a.1: bf16[8,16], b.1: bf16[32,16], c.1: bf16[16,64]) -> bf16[32,64] {
  %a.1 = bf16[8,16] parameter(0)
  %b.1 = bf16[32,16] parameter(1)
  %c.1 = bf16[16,64] parameter(2)
  %ag.1 = bf16[32,16] all-gather(%a.1), CONFIG
  ROOT %d = bf16[32,64] convolution(%b.1, %c.1), dim_labels=bf_io->bf
}

%last (a.2: bf16[8,16]) -> bf16[32,16] {
  %a.2 = bf16[8,16] parameter(0)
  %ag.2 = bf16[32,16] all-gather(%a.2), CONFIG
  ROOT %e = bf16[32,16] custom-call(%a.2, %ag.2), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (x: bf16[8,16], y: bf16[32,16], z: bf16[16,64]) -> bf16[32,16] {
  %x = bf16[8,16] parameter(0)
  %y = bf16[32,16] parameter(1)
  %z = bf16[16,64] parameter(2)
  %f = (bf16[8,16], bf16[32,16]) fusion(%x), kind=kCustom, calls=%first
  %g = bf16[32,64] fusion(%x, %y, %z), kind=kCustom, calls=%middle
  ROOT %h = bf16[32,16] fusion(%x), kind=kCustom, calls=%last
}
""".replace("CONFIG", f"channel_id=3, replica_groups={{{{0,1,2,3}}}}, backend_config={{{PART_OF_FUSIONS}}}")


def test_a_collective_spread_over_fusions_counts_once_with_what_they_compute():
    (found,), _ = collectives(HloModule(FUSED), 4)
    assert (found.kind, found.bytes, found.asynchronous) == ("all-gather", 2 * 32 * 16, True)
    assert found.flops == 2 * 32 * 16 * 64


def test_an_exchange_of_ragged_rows_is_the_smaller_of_its_buffers():
    text = """HloModule m

ENTRY %main (a: bf16[64,8], b: bf16[32,8], i: s32[4]) -> bf16[32,8] {
  %a = bf16[64,8] parameter(0)
  %b = bf16[32,8] parameter(1)
  %i = s32[4] parameter(2)
  ROOT %r = bf16[32,8] ragged-all-to-all(%a, %b, %i, %i, %i, /*index=5*/%i), replica_groups={{0,1,2,3}}
}
"""
    (found,), _ = collectives(HloModule(text), 4)
    assert (found.kind, found.bytes, found.dtype) == ("ragged-all-to-all", 2 * 32 * 8, "bf16")


def convolution(line, *operands):
    parameters = [f"  %p{n} = bf16[{shape}] parameter({n})" for n, shape in enumerate(operands)]
    body = "\n".join([*parameters, f"  ROOT %c = {line}"])
    read = HloModule("HloModule m\n\nENTRY %main (p: bf16[1]) -> bf16[1] {\n" + body + "\n}\n")
    return read.flops("main")


def test_products_written_as_convolutions():
    plain = convolution("bf16[5,7] convolution(%p0, %p1), dim_labels=bf_io->bf", "5,3", "3,7")
    batched = convolution(
        "bf16[4,5,7] convolution(%p0, %p1), window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf",
        "4,5,3",
        "4,3,7",
    )
    padded = convolution(
        "bf16[1,4,1] convolution(%p0, %p1), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", "1,4,1", "3,1,1"
    )
    assert plain == 2 * 5 * 3 * 7
    assert batched == 4 * plain  # one tap meets an element in each batch
    assert padded == 2 * (2 + 3 + 3 + 2)  # taps at the ends meet padding


def test_shapes_with_layouts_and_tuples():
    text = "(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/s32[]{:T(128)}, f8e4m3fn[16]{0}, pred[4])"
    assert shapes(text) == [Shape("bf16", (2, 3)), Shape("s32", ()), Shape("f8e4m3fn", (16,)), Shape("pred", (4,))]
    assert [shape.bytes for shape in shapes(text)] == [12, 4, 16, 4]


SPARSE_CORE = """HloModule m, is_scheduled=true

%called (p: bf16[8,4]) -> bf16[16,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  ROOT %all-gather.1 = bf16[16,4]{1,0} all-gather(%p), channel_id=1, replica_groups={{0,1}}, dimensions={0}
}, execution_thread="sparsecore"

ENTRY %main (x: bf16[8,4]) -> bf16[16,4] {
  %x = bf16[8,4]{1,0} parameter(0)
  %start = ((bf16[8,4]{1,0}), bf16[16,4]{1,0}) call-start(%x), async_execution_thread="sparsecore", to_apply=%called
  ROOT %done = bf16[16,4]{1,0} call-done(%start)
}
"""


def test_a_collective_that_a_sparse_core_carries_out_is_found():
    (found,), unknown = collectives(HloModule(SPARSE_CORE), 2)
    assert (found.kind, found.bytes, found.count, found.asynchronous, unknown) == ("all-gather", 128, 1, True, 0)
