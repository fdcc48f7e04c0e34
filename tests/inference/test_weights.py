"""New weights come one array at a time: memory stays bounded, and wrong arrays are refused in one line."""

import gc

import jax
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference.weights import EngineWeights, named_leaves
from tests.inference.tiny import ROUTED, check_against_oracle, engine, finish, oracle, prompts, weights

[PROMPT] = prompts(12)
GREEDY = Sampling(max_tokens=6, temperature=0.0)


def host_leaves(seed):
    """All weights as NumPy arrays, by name."""
    return [(name, np.asarray(leaf)) for name, leaf in named_leaves(weights(ROUTED, seed))]


def layer_by_layer(leaves):
    """The same weights, stacked ones layer by layer from the last."""
    for name, array in leaves:
        if name.startswith(("dense/", "moe/")):
            yield from (((name, row), array[row]) for row in reversed(range(len(array))))
        else:
            yield name, array


def live_bytes():
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.parametrize(("split", "stacked"), [(list, True), (layer_by_layer, False)])
def test_an_update_never_needs_two_copies(split, stacked, monkeypatch):
    """Beside the weights at most one layer of one of them is alive at any time; all are replaced in the end."""
    new = host_leaves(3)
    total, largest = sum(array.nbytes for _, array in new), max(array[0].nbytes for _, array in new)
    held = EngineWeights(weights(ROUTED), ROUTED, None, stacked)
    held.update(held.check(host_leaves(1)))  # from now on nobody else holds its arrays
    gc.collect()  # what earlier tests left in cycles must not be freed while this one measures
    before, seen = live_bytes(), []
    original = EngineWeights._placed

    def measured(*arguments, **options):
        placed = original(*arguments, **options)
        seen.append(live_bytes() - before)
        return placed

    monkeypatch.setattr(EngineWeights, "_placed", measured)
    held.update(held.check(split(new)))
    assert held.complete and live_bytes() == before and len(seen) > len(new)
    assert 0 < max(seen) <= largest < total / 6
    expected = EngineWeights(weights(ROUTED, 3), ROUTED, None, stacked).params
    jax.tree.map(np.testing.assert_array_equal, held.params, expected)


@pytest.mark.parametrize("stacked", [False, True])
def test_dtypes_stay(stacked):
    low = weights(ROUTED) | {"embed": weights(ROUTED)["embed"].astype(np.float16)}
    held = EngineWeights(low, ROUTED, None, stacked)
    before = jax.tree.map(lambda array: array.dtype, held.params)
    held.update(held.check(host_leaves(3)))
    assert jax.tree.map(lambda array: array.dtype, held.params) == before
    assert {str(dtype) for dtype in jax.tree.leaves(before)} == {"float16", "float32"}  # the router stays whole


def test_updates_reach_running_requests_from_any_iterable():
    """Each token has the version and the log-probability of the weights that chose it."""
    run = engine(ROUTED)
    request = run.submit(PROMPT, Sampling(max_tokens=50, temperature=0.8))
    updates = [list, dict, iter, layer_by_layer]
    for version, form in enumerate(updates, 1):
        run.step()
        run.step()
        run.update_params(form(host_leaves(version)), version)
    finish(run)
    assert run.stats().preemptions == 0  # which would say that too many sequences run
    assert sorted(set(request.versions)) == [0, 1, 2, 3, 4]
    for i, (token, version) in enumerate(zip(request.tokens, request.versions, strict=True)):
        expected = oracle(ROUTED, request.ids, 0.8, seed=version)[len(PROMPT) - 1 + i, token]
        assert abs(request.logprobs[i] - expected) <= 1e-4


def replaced(index, name=None, array=None):
    leaves = host_leaves(3)
    old = leaves[index]
    return [*leaves[:index], (name or old[0], old[1] if array is None else array), *leaves[index + 1 :]]


def test_wrong_weights_are_refused_and_the_old_ones_stay():
    run = engine(ROUTED)
    for leaves, words in (
        (replaced(-1, name="moe/attention/qq"), "there is no weight 'moe/attention/qq'; did you mean"),
        (replaced(-1, array=np.zeros((3, 2))), r"has the shape \(3, 2\), not "),
        ([*host_leaves(3), host_leaves(3)[0]], "comes twice"),
        (host_leaves(3)[:-2], "lacks 2 of them"),
        (replaced(-1, name=("moe/router", 9)), r"moe/router of shape .* has no layer 9"),
        (replaced(-1, name=("embed", 0)), "embed of shape .* has no layer 0"),
    ):
        with pytest.raises(UserError, match=words) as error:
            run.update_params(leaves, 1)
        assert "\n" not in str(error.value) and run.version == 0
    with pytest.raises(UserError, match="there is no weight"):  # a stream whose first array is wrong
        run.update_params(iter(replaced(0, name="x")), 1)
    [request] = run.generate([PROMPT], GREEDY)
    check_against_oracle(ROUTED, request)


def check_last_token(run, request):
    """Of the weights of version 2, after five tokens of the first: the prompt's, then four of one program."""
    finish(run)
    assert list(request.versions) == [0] * 5 + [2]
    expected = oracle(ROUTED, request.ids, seed=3)[16, request.tokens[5]]
    np.testing.assert_allclose(request.logprobs[5], expected, atol=1e-4)


def test_a_stream_that_breaks_off_stops_the_engine_until_a_whole_update():
    run = engine(ROUTED)
    request = run.submit(PROMPT, GREEDY)
    run.step()
    with pytest.raises(UserError, match="there is no weight"):
        run.update_params(iter(replaced(5, name="x")), 1)
    assert not run.has_work() and run.version == 0
    with pytest.raises(UserError, match="incomplete; update_params has to be called again"):
        run.step()
    run.update_params(iter(host_leaves(3)), 2)
    check_last_token(run, request)


def test_an_engine_that_gave_its_memory_back_goes_on_with_the_next_weights():
    """Nothing of the weights and the cache is left meanwhile; the running request is computed anew."""
    gc.collect()  # what earlier tests left in cycles must not be freed while this one measures
    before = live_bytes()
    run = engine(ROUTED)
    request = run.submit(PROMPT, GREEDY)
    run.step()
    run.release()
    assert live_bytes() == before and not run.has_work()
    run.update_params(named_leaves(weights(ROUTED, 3)), 2)
    check_last_token(run, request)
    assert run.stats().preemptions == 0
