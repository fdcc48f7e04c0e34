"""The expert exchange: plans and counts against NumPy; ``test_exchange_on_devices.py`` runs it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
import jax
import numpy as np

from pallas_kernels.expert_exchange import exchange_cost
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


def test_cost_counts_each_row_once_on_each_side():
    cost = exchange_cost(48, 7168, 2)
    assert (cost.flops, cost.transcendentals) == (0, 0)
    assert cost.remote_bytes_transferred == 48 * 14336 and cost.bytes_accessed == 2 * 48 * 14336


def test_auto_is_ragged_for_a_tpu_and_a2a_where_that_does_not_exist():
    assert resolve_backend("auto", "pallas") == "ragged"
    assert resolve_backend("auto", "xla") == resolve_backend("auto", "interpret") == "a2a"
    assert resolve_backend("dense", "pallas") == "dense"
