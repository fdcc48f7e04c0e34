"""The expert exchange: plans and counts against NumPy; ``test_exchange_on_devices.py`` runs it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from pallas_kernels.expert_exchange import exchange_cost, exchanged_bytes
from pallas_kernels.expert_exchange.exchange import resolve_backend
from pallas_kernels.expert_exchange.plan import NOWHERE, plan_exchange
from tests.pallas_kernels.exchange import ROUTINGS, E, K, route, without_dropped

planned = jax.jit(plan_exchange, static_argnums=(1, 2, 3), static_argnames="packed")


@settings(max_examples=15)
@given(
    routing=st.sampled_from(ROUTINGS),
    ranks=st.sampled_from([2, 8]),
    tokens_slots=st.sampled_from([(1, 16), (45, 16), (45, 48)]),
    packed=st.booleans(),
    seed=st.integers(0, 2**31),
)
@example(routing="all tokens to one rank", ranks=8, tokens_slots=(45, 16), packed=True, seed=0)
@example(routing="none", ranks=8, tokens_slots=(45, 16), packed=True, seed=0)
def test_a_plan_sends_each_token_once_to_each_rank_of_its_experts(routing, ranks, tokens_slots, packed, seed):
    tokens, slots = tokens_slots
    ids = route(routing, ranks, tokens, seed)[:1]
    plan = jax.tree.map(np.asarray, planned(ids[0], E, ranks, slots, packed=packed))
    kept, dropped = _without_dropped(ids, ranks, slots)
    assert plan.dropped == dropped

    first = 0
    expected_place = {}
    for peer in range(ranks):
        sent = np.flatnonzero((kept // (E // ranks) == peer).any(axis=1))
        assert plan.count_P[peer] == sent.size
        assert plan.start_P[peer] == (first if packed else peer * slots)
        first += -(-sent.size // 16) * 16
        np.testing.assert_array_equal(
            plan.token_of_slot_PC[peer], np.pad(sent, (0, slots - sent.size), "constant", constant_values=tokens)
        )
        for index, token in enumerate(sent):
            place = plan.start_P[peer] + index
            assert plan.token_of_row_N[place] == token
            expected_place[token, peer] = place
    used = np.zeros(plan.token_of_row_N.size, bool)
    used[list(expected_place.values())] = True
    assert np.all(plan.token_of_row_N[~used] == tokens)
    for token in range(tokens):
        places = plan.place_TJ[token]
        assert sorted(places[places < NOWHERE]) == sorted(p for (t, _), p in expected_place.items() if t == token)
    assert plan.place_TJ.shape == (tokens, min(K, ranks))
    for token, k in np.ndindex(tokens, K):
        slot, peer = plan.slot_of_choice_TK[token, k], kept[token, k] // (E // ranks)
        assert slot == NOWHERE if peer == ranks else plan.token_of_slot_PC[peer, slot - peer * slots] == token


def _without_dropped(ids, ranks, slots):
    """``without_dropped`` for one of several ranks."""
    everyone = np.full((ranks, *ids.shape[1:]), E, np.int32)
    everyone[0] = ids[0]
    kept, dropped = without_dropped(everyone, slots)
    return kept[0], dropped[0]


@settings(max_examples=15)
@given(routing=st.sampled_from(ROUTINGS), ranks=st.sampled_from([1, 2, 8]), seed=st.integers(0, 2**31))
def test_exchanged_bytes_are_those_of_the_rows_that_leave_a_rank(routing, ranks, seed):
    tokens, width, itemsize = 45, 10, 2
    ids = route(routing, ranks, tokens, seed)
    options = {"experts": E, "width": width, "itemsize": itemsize}
    for slots, room in ((None, 48), (16, 16)):
        leave, arrive, grouped = (np.zeros(ranks, int) for _ in range(3))
        for rank, peer in np.ndindex(ranks, ranks):
            if rank != peer:
                rows = sum(any(id // (E // ranks) == peer for id in token) for token in ids[rank].tolist())
                leave[rank] += min(rows, room)
                arrive[peer] += min(rows, room)
                grouped[rank] += -(-min(rows, room) // 16) * 16
        others = ranks - 1
        ragged = exchanged_bytes(ids, backend="ragged", slots=slots, **options)
        np.testing.assert_array_equal(ragged.sent, leave * width * itemsize)
        np.testing.assert_array_equal(ragged.returned, arrive * width * itemsize)
        dma = exchanged_bytes(ids, backend="dma", slots=slots, **options)
        np.testing.assert_array_equal(dma.sent, grouped * width * itemsize)
        assert dma.returned.sum() == dma.sent.sum()
        a2a = exchanged_bytes(ids, backend="a2a", slots=slots, **options)
        assert set(a2a.sent) == set(a2a.returned) == {others * room * width * itemsize}
        assert set(a2a.choices) == {others * room * K * 8}
        np.testing.assert_array_equal(ragged.choices, a2a.choices + 8 * others)
        np.testing.assert_array_equal(dma.choices, ragged.choices)
    dense = exchanged_bytes(ids, backend="dense", **options)
    assert set(dense.sent) == {others * tokens * width * itemsize}
    assert set(dense.returned) == {others * tokens * width * 4}
    assert set(dense.choices) == {others * tokens * K * 8}


def test_bytes_of_an_unknown_backend_are_refused():
    with pytest.raises(ValueError, match="unknown backend"):
        exchanged_bytes(route("uniform", 2, 3, 0), experts=E, width=1, itemsize=2, backend="auto")


def test_a_token_goes_to_fewer_ranks_than_it_has_experts():
    """8 of 384 experts, uniformly, over 16 ranks: 16 (1 - C(360, 8) / C(384, 8)) = 6.5 ranks, its own among them."""
    rng = np.random.default_rng(0)
    ids = rng.permuted(np.tile(np.arange(384), (16 * 200, 1)), axis=1)[:, :8].reshape(16, 200, 8)
    sent = exchanged_bytes(ids, experts=384, width=1, itemsize=1, backend="ragged").sent.sum() / (16 * 200)
    assert sent == pytest.approx(6.46 * 15 / 16, rel=0.01)


def test_cost_counts_each_row_once_on_each_side():
    cost = exchange_cost(48, 7168, 2)
    assert (cost.flops, cost.transcendentals) == (0, 0)
    assert cost.remote_bytes_transferred == 48 * 14336 and cost.bytes_accessed == 2 * 48 * 14336


def test_auto_is_ragged_for_a_tpu_and_a2a_where_that_does_not_exist():
    assert resolve_backend("auto", "pallas") == "ragged"
    assert resolve_backend("auto", "xla") == resolve_backend("auto", "interpret") == "a2a"
    assert resolve_backend("dense", "pallas") == "dense"
