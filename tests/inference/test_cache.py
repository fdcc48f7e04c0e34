"""The cache: a program writes into it in place, whatever its size, and a broken sequence leaves nothing in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.inference.decode import Continuation, decode
from k2jax.inference.engine import Engine
from k2jax.inference.forward import Chunk, Targets, empty_cache, run_chunk
from k2jax.inference.sampler import Choice
from k2jax.inference.weights import EngineWeights
from tests.inference.tiny import MODELS, check_against_oracle, engine, prompts, weights

GREEDY = Sampling(max_tokens=4, temperature=0.0, prompt_logprobs=True)


@pytest.mark.parametrize(
    ("name", "program", "stacked"),
    [
        ("mla-yarn", "decode", False),
        ("gqa-bias-llama3", "prefill", True),
        pytest.param("mla-no-q-lora-groups", "prefill", True, marks=pytest.mark.slow),
        pytest.param("gqa-bias-llama3", "prefill", False, marks=pytest.mark.slow),
        pytest.param("gqa-bias-llama3", "decode", True, marks=pytest.mark.slow),
        pytest.param("mla-yarn", "prefill", False, marks=pytest.mark.slow),
        pytest.param("mla-yarn", "decode", True, marks=pytest.mark.slow),
    ],
)
def test_a_program_needs_no_second_cache(name, program, stacked):
    model = MODELS[name]
    params = EngineWeights(weights(model), model, None, stacked).params
    cache = jax.eval_shape(lambda: empty_cache(model, 4096, 16, jnp.float32))
    row, pages = jax.ShapeDtypeStruct((2,), jnp.int32), jax.ShapeDtypeStruct((2, 4), jnp.int32)
    numbers = jax.ShapeDtypeStruct((2,), jnp.float32)
    if program == "prefill":
        ids = jax.ShapeDtypeStruct((2, 16), jnp.int32)
        lowered = run_chunk.lower(params, cache, Chunk(ids, row, row, pages, ids), Targets(ids, numbers), config=model)
    else:
        rows, limit = Continuation(row, row, row, pages), jax.ShapeDtypeStruct((), jnp.int32)
        lowered = decode.lower(params, cache, rows, Choice(*[numbers] * 3, *[row] * 3, row), limit, config=model)
    memory = lowered.compile().memory_analysis()
    size = cache.size * cache.dtype.itemsize
    assert memory.alias_size_in_bytes >= size  # the new cache is the old one
    assert memory.temp_size_in_bytes < size / 10


@pytest.mark.parametrize("name", [pytest.param("mla-yarn", marks=pytest.mark.slow), "gqa-bias-llama3"])
def test_a_sequence_that_is_not_finite_harms_none_that_gets_its_pages(name):
    """A page is read whole and weighed by 0 where it holds nothing of the sequence: 0 times NaN would be NaN."""
    model, broken = MODELS[name], 60
    params = weights(model) | {"embed": weights(model)["embed"].at[broken].set(jnp.nan)}
    one = Engine(model, params, slots=1, max_length=64, pages=4)
    [bad] = one.generate([[1, broken, *range(10, 40)]], GREEDY)
    assert np.isnan(bad.prompt_logprobs[1])
    [good] = one.generate([[1, 2, 3]], GREEDY)
    assert len(good.tokens) == 4
    check_against_oracle(model, good)


def test_programs_are_compiled_once_for_the_first_cache_and_for_those_that_they_return(through_jit):
    one = engine(MODELS["gqa-bias-llama3"], slots=3, max_length=48)  # sizes of no other test
    before = run_chunk._cache_size(), decode._cache_size()
    one.generate([[1]], Sampling(max_tokens=9, temperature=0.0))
    one.generate([[*range(16)]], Sampling(max_tokens=1, temperature=0.0))
    assert (run_chunk._cache_size(), decode._cache_size()) == (before[0] + 1, before[1] + 1)


def test_programs_read_few_pages_beyond_those_in_use(ran):
    """A fresh prompt reads none, and a later token at most twice those of its sequence."""
    engine(max_length=256).generate(prompts(70), Sampling(max_tokens=30, temperature=0.0))
    read = []
    for name, (rows, *_), _, _ in [run for run in ran if run.name != "sample"]:
        ahead = name == "decode"  # decoding also writes to the pages that it knows
        read.append((rows.pages.shape[1], -(-int((rows.start + ahead * rows.count).max()) // 16)))
    assert read[0] == (0, 0) and read[1] == (4, 4) and len(read) == 2 + 8
    assert all(used <= columns < max(5, 2 * used) for columns, used in read)
