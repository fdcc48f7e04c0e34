"""Rows of trees have the loss and the gradient of training on every path, for every objective, and stay exact when cut.

The reference never sees a row: NumPy float64, path by path.
"""

from collections import defaultdict

from hypothesis import example, given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import TokenScores, stack_rows
from k2jax.config import PackingConfig, resolve
from k2jax.errors import UserError
from k2jax.losses import Rows, make_policy_loss
from k2jax.losses.distill import Distillation
from k2jax.rl.packing.rows import empty_row, pack
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.rl.setup import check_config
from tests.rl.packing.path_reference import (
    CONFIGS,
    Token,
    episodes,
    old_logprob,
    random_samples,
    random_tree,
    responses_of,
    value_and_gradient,
    without_thinking,
)
from tests.rl.tiny import tiny_config
from tests.rl.trees import single_turn

LENGTH, ROWS = 64, 16
MODES = pytest.mark.parametrize("shared_tokens", ["unique", "paths"])
# A response of the mode ``unique`` that is larger than a row has no sum for K2's square; the others are exact.
# Nor has it the ratio of all of it.
WHOLE = ("k2", "k2 with icepop", "gspo")
EXACT_IF_SPLIT = {"paths": list(CONFIGS), "unique": [name for name in CONFIGS if name not in WHOLE]}
LOSSES = {name: make_policy_loss(config) for name, config in CONFIGS.items()}


@jax.jit
def values_and_gradients(logprob_BS, exit_BS, targets):
    """Of every loss at once, so that there is one program to compile."""
    rows = Rows(exit_BS, jnp.arange(LENGTH))

    def value(logprob_BS, loss):
        sums = loss(TokenScores(logprob_BS), targets, rows)
        return sums["policy"][0] / loss.denominators(targets)["policy"]

    return {name: jax.value_and_grad(lambda x: value(x, loss))(logprob_BS) for name, loss in LOSSES.items()}  # noqa: B023


def context(row, index):
    """Tokens that the prediction of a token may see and the token itself, by the definition of the mask."""
    parent = row.parent[index]
    return tuple(int(row.tokens[j]) for j in [*range(parent + 1), index] if j == index or parent < row.exit[j])


def token_of(row, index):
    logprob, temperature = row.targets.behavior_logprob[index], row.targets.temperature[index]
    return Token(context(row, index), float(logprob), round(float(temperature), 3))


def of_rows(rows, scores, rng):
    """Value and gradient by Token of every loss over packed rows."""
    assert len(rows) <= ROWS
    batch = stack_rows([*rows, *[empty_row(LENGTH)] * (ROWS - len(rows))])
    logprob_BS = rng.normal(-3, 1, batch.tokens.shape)  # of tokens that were not sampled
    tokens = {}
    for number, row in enumerate(rows):
        for index in np.flatnonzero(row.targets.mask):
            tokens[number, index] = token_of(row, index)
            logprob_BS[number, index] = scores[tokens[number, index]]
            batch.targets.old_logprob[number, index] = old_logprob(tokens[number, index])
    found = {}
    for name, (value, gradient_BS) in values_and_gradients(np.float32(logprob_BS), batch.exit, batch.targets).items():
        gradient = defaultdict(float)
        for place, token in tokens.items():
            gradient[token] += float(gradient_BS[place])
        found[name] = float(value), gradient
        assert not np.asarray(gradient_BS)[batch.targets.mask == 0].any()
    return found


def check(samples, packed, shared_tokens, rng, losses=tuple(CONFIGS)):
    responses = responses_of(samples, shared_tokens)
    scores = {}
    for token in (token for response in responses for turn in response.turns for token in turn):
        scores.setdefault(token, float(np.float32(token.logprob + rng.normal(0, 0.3))))
    found = of_rows(packed.rows, scores, rng)
    for name in losses:
        value, gradient = value_and_gradient(name, responses, scores)
        assert set(found[name][1]) == set(gradient), name
        largest = max(map(abs, gradient.values()))
        for token, slope in gradient.items():
            assert abs(found[name][1][token] - slope) <= 1e-5 * largest, (name, token)
        np.testing.assert_allclose(found[name][0], value, rtol=1e-5, atol=1e-5 * largest, err_msg=name)


@MODES
@settings(max_examples=25)
@given(seed=st.integers(0, 2**16))
def test_trees_have_the_value_and_gradient_of_every_path(shared_tokens, seed):
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, 40)
    packed = pack(samples, LENGTH, PackingConfig("tree", shared_tokens))
    check(samples, packed, shared_tokens, rng)


@MODES
@settings(max_examples=8)
@given(seed=st.integers(0, 2**16))
def test_a_tree_of_several_rows_is_cut_between_paths_and_stays_exact(shared_tokens, seed):
    rng = np.random.default_rng(seed)
    samples = [TrainingSample(random_tree(rng, 150), 1.3), TrainingSample(random_tree(rng, 30), -0.7)]
    packed = pack(samples, LENGTH, PackingConfig("tree", shared_tokens), splits_responses=True)
    assert len(packed.rows) > 1 or sum(len(node.tokens) for node in samples[0].trajectory.nodes) <= LENGTH
    check(samples, packed, shared_tokens, rng, EXACT_IF_SPLIT[shared_tokens])


@MODES
@settings(max_examples=5)
@given(seed=st.integers(0, 2**16))
def test_paths_by_themselves_have_the_same_value_and_gradient(shared_tokens, seed):
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, 30, groups=1)
    packed = pack(samples, LENGTH, PackingConfig("paths", shared_tokens), splits_responses=True)
    check(samples, packed, shared_tokens, rng, EXACT_IF_SPLIT[shared_tokens])


@MODES
def test_a_copy_that_lacks_the_thinking_is_a_branch_without_gradient_of_its_own(shared_tokens):
    """Also where it lacks nothing: what was rendered again was not sampled, and is another token to the loss."""
    for lost in range(4):
        rng = np.random.default_rng(lost)
        tree = without_thinking(rng, lost)
        sizes = [len(node.tokens) for node in tree.nodes]
        packed = pack([TrainingSample(tree, 1.3)], LENGTH, PackingConfig("tree", shared_tokens))
        (row,) = packed.rows
        assert packed.stored_tokens == sum(sizes) and row.targets.mask.sum() == sizes[1] + sizes[4]
        check([TrainingSample(tree, 1.3)], packed, shared_tokens, rng)


@jax.jit
def distillation(logprob_BS, targets):
    """Of distillation as a term of its own, with its gradient."""

    def value(logprob_BS):
        loss, rows = Distillation(0.7), Rows(jnp.zeros(logprob_BS.shape, jnp.int32), jnp.arange(LENGTH))
        return loss(TokenScores(logprob_BS), targets, rows)["distill"][0] / loss.denominators(targets)["distill"]

    return jax.value_and_grad(value)(logprob_BS)


@MODES
@settings(max_examples=10)
@given(seed=st.integers(0, 2**16))
def test_distillation_over_trees_is_that_over_every_path(shared_tokens, seed):
    """A token that paths share counts in each response that holds it, with what its teacher says of it."""
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, 40)
    tokens = [t for response in responses_of(samples, shared_tokens) for turn in response.turns for t in turn]
    gap = {token: float(np.float32(rng.normal())) for token in tokens}
    scores = {token: float(np.float32(token.logprob + rng.normal(0, 0.3))) for token in tokens}
    ratio = {token: np.exp(scores[token] - token.logprob) for token in scores}
    rows = [*pack(samples, LENGTH, PackingConfig("tree", shared_tokens)).rows, *[empty_row(LENGTH)] * ROWS][:ROWS]
    logprob_BS, places = np.zeros((ROWS, LENGTH), np.float32), {}
    for number, row in enumerate(rows):
        for index in np.flatnonzero(row.targets.mask):
            token = places[number, index] = token_of(row, index)
            logprob_BS[number, index], row.targets.distill[index] = scores[token], gap[token]
    value, gradient_BS = distillation(logprob_BS, stack_rows(rows).targets)
    np.testing.assert_allclose(value, -0.7 * np.mean([ratio[t] * gap[t] for t in tokens]), rtol=1e-5, atol=1e-6)
    found, expected = defaultdict(float), defaultdict(float)
    for place, token in places.items():
        found[token] += float(gradient_BS[place])
    for token in tokens:
        expected[token] -= 0.7 * ratio[token] * gap[token] / len(tokens)
    assert set(found) == set(expected)
    for token, slope in expected.items():
        assert abs(found[token] - slope) <= 1e-5 * max(map(abs, expected.values()))


def test_a_whole_response_that_is_larger_than_a_row_is_left_out_where_the_loss_needs_its_sum():
    sample = TrainingSample(random_tree(np.random.default_rng(3), 150), 1.0)
    packed = pack([sample], LENGTH, PackingConfig("tree", "unique"))
    assert [each.trajectory for each in packed.too_large] == [sample.trajectory] and not packed.rows
    assert pack([sample], LENGTH, PackingConfig("tree", "paths")).rows


def test_one_entry_with_the_mean_advantage_has_the_wrong_gradient_where_the_smaller_product_counts():
    """One turn, advantages 2 and -1, a ratio above the band: for the first it is clipped, for the second it is not."""
    rng, first = np.random.default_rng(0), single_turn(np.random.default_rng(0))
    samples = [TrainingSample(first, 2.0), TrainingSample(first, -1.0)]
    (row,) = pack(samples, LENGTH, PackingConfig("tree")).rows
    sampled = row.targets.mask > 0
    assert sampled.sum() == 4 and (row.targets.mask[sampled] == 2).all()
    scores = {token: old_logprob(token) + 0.5 for token in (token_of(row, index) for index in np.flatnonzero(sampled))}
    exact = of_rows([row], scores, rng)["kat"][1]
    turns = np.arange(len(row.targets.turn_weight))
    naive_targets = row.targets._replace(
        turn_advantage=np.where(turns == 0, 0.5, 0).astype(np.float32),
        turn_weight=np.where(turns == 0, 2.0, 0).astype(np.float32),
    )
    naive = of_rows([row.replace(targets=naive_targets)], scores, rng)["kat"][1]
    reference = value_and_gradient("kat", responses_of(samples, "unique"), scores)[1]
    for token, slope in reference.items():
        assert slope == pytest.approx(np.exp(0.5) / 8)
        assert exact[token] == pytest.approx(slope, rel=1e-5)
        assert naive[token] == 0


@given(seed=st.integers(0, 2**16), length=st.sampled_from([64, 512]))
@example(seed=0, length=512)
def test_every_token_is_stored_once_at_its_depth_behind_its_own_path(seed, length):
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, 40)
    packed = pack(samples, length, PackingConfig("tree", "paths"))
    for row in packed.rows:
        used = row.exit > np.arange(length)
        assert used.sum() == used.argmin() or used.all()
        for index in np.flatnonzero(used):
            assert row.positions[index] == len(context(row, index)) - 1
            assert row.parent[index] < index < row.exit[index]
    if length == 512:  # everything fits: what is stored is the set of different prefixes of each group
        prefixes = {prefix for sample in samples for prefix in prefixes_of(sample.trajectory)}
        assert packed.stored_tokens == len(prefixes)
    assert packed.stored_tokens == sum(int((row.exit > np.arange(length)).sum()) for row in packed.rows)
    assert packed.padding == 1 - packed.stored_tokens / (length * len(packed.rows))
    by_paths = pack(samples, length, PackingConfig("paths", "paths"))
    assert packed.path_tokens == by_paths.stored_tokens and by_paths.tokens_saved == 1 <= packed.tokens_saved


def prefixes_of(trajectory):
    """The group and all records up to each token of the paths that hold sampled tokens, to the last node of these."""
    for episode in episodes(trajectory):
        records, last = [], max(index for index, node in enumerate(episode.nodes) if node.mask.any())
        for node in episode.nodes[: last + 1]:
            for token, *record in zip(node.tokens, node.mask, node.logprobs, strict=True):
                records.append((int(token), *map(float, record), node.temperature))
        for end in range(len(records)):
            yield trajectory.key[:2], tuple(records[: end + 1])


def test_the_rows_do_not_depend_on_the_order_of_a_group_s_samples():
    rng = np.random.default_rng(5)
    samples = [TrainingSample(tree, float(rng.normal())) for tree in episodes(random_tree(rng, 60))]
    rows = [pack(order, LENGTH, PackingConfig("tree")).rows for order in (samples, samples[::-1])]
    for row, other in zip(*rows, strict=True):
        for leaf in ("tokens", "positions", "exit", "parent"):
            np.testing.assert_array_equal(getattr(row, leaf), getattr(other, leaf))
        np.testing.assert_allclose(row.targets.advantage, other.targets.advantage, rtol=1e-6)


def test_trees_are_refused_where_tokens_are_dropped():
    config = tiny_config()
    config.rl.packing.layout = "tree"
    config.parallel.update({"expert": 2, "expert_backend": "a2a", "expert_slots": 0.5})
    with pytest.raises(UserError, match=r"config.rl.packing.layout tree .* set config.parallel.expert_slots 0.5 to 1"):
        check_config(resolve(config))
