"""The experts that the engine reports are those that the full forward pass chooses for the same tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference.weights import named_leaves
from k2jax.model import feed_forward, forward
from tests.inference import tiny
from tests.inference.tiny import GQA, ROUTED, finish, prompts, weights, with_few_pages

ASKED = Sampling(max_tokens=20, temperature=0.8, return_experts=True)
engine = functools.partial(tiny.engine, ROUTED)


@functools.cache
def _recorded(model, width):
    """The full forward pass with layers one by one; the routed experts are handed their ids, which are recorded."""

    def run(params, tokens):
        chosen = []

        def experts(x, w13, w2, expert_ids, gates):
            chosen.append(expert_ids)
            return feed_forward._local_experts(x, w13, w2, expert_ids, gates, config=model, store_fp8=())

        layers = [jax.tree.map(lambda leaf, i=i: leaf[i], params["moe"]) for i in range(model.layers)]
        forward({**params, "moe": layers}, tokens, None, None, model, experts=experts)
        return jnp.stack(chosen, axis=1)

    return jax.jit(run)


def chosen_experts(ids, model=ROUTED, seed=0):
    """``[len(ids), expert layers, active experts]``, experts of a token in order of their number."""
    padded = np.zeros((1, 128), np.int32)
    padded[0, : len(ids)] = ids
    return np.sort(np.asarray(_recorded(model, 128)(weights(model, seed), padded))[: len(ids)])


def check(request, seed=0):
    completion = request.completion()
    fed = [*request.prompt, *completion.tokens[:-1].tolist()]
    assert completion.experts.dtype == np.int16 and completion.experts.shape == (len(fed), 2, 2)
    np.testing.assert_array_equal(np.sort(completion.experts), chosen_experts(fed, seed=seed))


def test_of_every_token_that_was_computed():
    """Prompts shorter and longer than a chunk, next to requests that do not ask."""
    run = engine()
    requests = [run.submit(prompt, ASKED) for prompt in prompts(3, 40, 17)]
    plain = run.submit(prompts(9)[0], Sampling(max_tokens=25))
    finish(run)
    for request in requests:
        check(request)
    assert plain.completion().experts is None


def test_of_shared_prefixes_preempted_and_resumed_requests():
    """Pages of a request that did not ask are computed again, those of one that did are used with their experts."""
    prompt = prompts(40)[0]
    run = engine()
    run.generate([prompt], Sampling(max_tokens=1))
    first, second = (run.generate([prompt], ASKED)[0] for _ in range(2))
    assert (first.cached_tokens, second.cached_tokens) == (0, 32)
    crowded = with_few_pages(engine(), 7)
    squeezed = crowded.generate(prompts(30, 31, 33), ASKED)
    resumed = run.submit(prompt, ASKED, list(first.tokens[:7]))
    run.step()
    run.pause(resumed)
    run.resume(resumed)
    finish(run)
    assert (run.stats().preemptions, crowded.stats().preemptions > 0) == (0, True)
    for request in (first, second, *squeezed, resumed):
        check(request)


def test_a_token_keeps_the_experts_that_it_was_chosen_with():
    """Recomputing the cache under new weights does not change what was reported of earlier tokens."""
    run = engine()
    request = run.submit(prompts(20)[0], ASKED)
    for _ in range(3):
        run.step()
    run.update_params(named_leaves(weights(ROUTED, 3)), 1)
    finish(run)
    old = list(request.versions).count(0)
    fed = request.ids[:-1]
    experts = np.sort(request.completion().experts)
    assert 0 < old < 20
    np.testing.assert_array_equal(experts[: 20 + old - 1], chosen_experts(fed)[: 20 + old - 1])
    np.testing.assert_array_equal(experts[20 + old - 1 :], chosen_experts(fed, seed=3)[20 + old - 1 :])


def test_who_does_not_ask_runs_a_program_without_them(ran):
    run = engine()
    run.generate(prompts(9), Sampling(max_tokens=2))
    run.generate(prompts(9), ASKED)
    variants = [(each.name, each.static["return_experts"]) for each in ran if each.name != "sample"]
    assert variants[:3] == [("run_chunk", False), ("decode", False), ("run_chunk", True)]
    assert set(variants[3:]) == {("decode", True)}
    for each in ran:
        assert each.name == "sample" or each.static["return_experts"] == (each.output.experts.size > 0)


def test_a_model_without_experts_has_none_to_report():
    with pytest.raises(UserError, match="the model has no experts"):
        tiny.engine(GQA).submit([1], ASKED)
