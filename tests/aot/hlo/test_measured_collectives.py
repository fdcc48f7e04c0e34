"""What travels of an exchange's buffer, against counting rows of random routings and the plan's own buffer."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.aot.cost.expert_rows import mean_owners
from k2jax.aot.hlo.measured_collectives import ExchangePart, payload_share
from k2jax.aot.training import exchange_part
from k2jax.config import model_preset
from k2jax.config.schema import Config, DataConfig, ParallelConfig, TrainConfig
from pallas_kernels.expert_exchange.plan import plan_exchange

K2 = model_preset("k2")


@pytest.mark.parametrize(
    ("ranks", "part"),
    [
        (64, ExchangePart(12, 12)),  # decoding: most of the buffer is padding
        (64, ExchangePart(171, 171)),
        (16, ExchangePart(1024, 1024)),
        (16, ExchangePart(1024, 205)),  # slots hold less than half of what is sent elsewhere
        (2, ExchangePart(100, 90)),
    ],
)
def test_what_travels_of_an_exchange_are_the_rows_of_a_uniform_routing(ranks, part):
    rng, draws = np.random.default_rng(0), max(1, 2000 // part.tokens)
    ids = rng.permuted(np.tile(np.arange(384), (draws * part.tokens, 1)), axis=1)[:, :8].astype(np.int32)
    sent_GTP = (ids[:, :, None] // (384 // ranks) == np.arange(ranks)).any(1).reshape(draws, part.tokens, ranks)
    capacity = -(-part.slots // 16) * 16
    rows = np.minimum(sent_GTP.sum(1), capacity).sum(1).mean()
    plan = jax.eval_shape(
        lambda ids: plan_exchange(ids, 384, ranks, capacity, packed=True),
        jax.ShapeDtypeStruct((part.tokens, 8), jnp.int32),
    )
    assert payload_share(K2, ranks, part) * plan.token_of_row_N.size == pytest.approx(rows, rel=0.02)


def test_how_many_rows_k2_exchanges():
    """By hand: 12 tokens to 7.64 of 64 ranks each; 16 ranks with 832 slots, which all are full."""
    sent = 64 * (1 - np.prod([(378 - i) / (384 - i) for i in range(8)]))
    assert mean_owners(K2, 64) == pytest.approx(sent)
    rows = 64 * 16  # a group of 16 rows for each rank
    assert payload_share(K2, 64, ExchangePart(12, 12)) == pytest.approx(12 * sent / rows)
    assert payload_share(K2, 16, ExchangePart(4096, 820)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shape", "tokens"), [({"data": 2, "stage": 2, "expert": 4}, 384), ({"data": 2, "expert": 4, "context": 2}, 192)]
)
def test_what_a_device_exchanges_at_once_is_a_chunk_of_its_micro_batch(shape, tokens):
    given = Config(
        train=TrainConfig(batch_size=48, micro_batches=2),
        data=dataclasses.replace(DataConfig(), sequence_length=512),
        parallel=ParallelConfig(expert_chunks=4, expert_slots=0.3),
    )
    assert exchange_part(given, SimpleNamespace(shape=shape)) == (tokens, np.ceil(0.3 * tokens))
