"""PARL's terms, annealing and metrics against float64 loops; what has a gradient; what a resumed run goes on with."""

import asyncio
import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.agents.mixture import CRITIC, DrawnTask
from k2jax.agents.task import Task
from k2jax.batch import TokenScores, stack_rows
from k2jax.checkpoint.extra import decode, encode
from k2jax.config.schema import ParlConfig
from k2jax.losses import Rows, make_policy_loss
from k2jax.rl.groups import PromptGroup, RewardTerm, total_reward, training_samples
from k2jax.rl.methods.parl import PARL, annealing
from k2jax.rl.setup import check_config
from k2jax.trajectory import Node, Reward, Trajectory
from k2jax.trajectory.steps import AGENT, NO_CALL, ROLE, add_spawned
from k2jax.trajectory.types import ROOT
from tests.refusal import refused
from tests.rl.test_updates import trainer
from tests.rl.tiny import tiny
from tests.rl.trees import sampled, single_turn

VOCAB = 50


def turn_of(rng, trajectory, calls=0, results=()):
    """An answer with calls of tools, and a message for each result: its name and tokens."""
    last = len(trajectory.nodes) - 1
    turn = sum(node.turn >= 0 for node in trajectory.nodes)
    node = sampled(rng, last, 4, turn)
    last = trajectory.add(node.__class__(**vars(node) | {"message": {"role": "assistant", "tool_calls": [{}] * calls}}))
    for name, tokens in results:
        last = trajectory.add(Node.observed(last, tokens, {"role": "tool", "name": name}))


def agent(rng, created, agents, *, status="finished", reward=1.0, role="helper", sample=0):
    """An agent of two answers: it creates sub-agents, and then gives a task to each of ``agents``, (name, status)."""
    trajectory = Trajectory("t", "d", (1, 0, sample), status=status)
    trajectory.add(Node.observed(ROOT, rng.integers(0, VOCAB, 4)))
    turn_of(rng, trajectory, created, [("create_subagent", rng.integers(0, VOCAB, 2)) for _ in range(created)])
    ended = []
    for number, (name, its_status) in enumerate(agents):
        child = single_turn(rng, 3, 2 + number, key=(1, 0, sample))
        child.status = its_status
        child.metadata |= {ROLE: role, AGENT: name}
        ended.append(child)
    turn_of(rng, trajectory, len(agents), [("assign_task", child.nodes[-1].tokens.copy()) for child in ended])
    for number, child in enumerate(ended):
        add_spawned(trajectory, number, (2, number), child)
    turn_of(rng, trajectory)
    trajectory.reward = None if status == "masked" else Reward(reward)
    return trajectory


def group_of(*trajectories, kind="low"):
    task = Task("t", "d", ({"role": "user", "content": "ab"},), "share_of_low_bytes")
    group = PromptGroup(0, (1, 0), DrawnTask(kind, task), list(trajectories))
    group.terms = [RewardTerm("verifier", np.array([each.reward.value if each.reward else 0 for each in trajectories]))]
    return group


def rewarded(method, step, group):
    asyncio.run(method.rewards(step, [group]))
    return total_reward(group.terms)


SETTINGS = {"rl.parl.parallel": 0.3, "rl.parl.finish": 0.2, "rl.parl.decay": 0.5, "train.steps": 8}
names, statuses = st.sampled_from("abcde"), st.sampled_from(["finished", "truncated", "masked"])
swarms = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.tuples(names, statuses), max_size=5), st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)
@given(swarms, st.sampled_from(["assigned", "created"]), st.integers(1, 6), st.integers(1, 8))
def test_terms_are_bounded_and_the_formula_s_in_every_iteration(episodes, counted, wanted, step):
    rng = np.random.default_rng(0)
    config = tiny(**SETTINGS | {"rl.parl.counted": counted, "rl.parl.agents": wanted})
    group = group_of(
        *[
            agent(rng, created, agents, reward=reward, status="masked" if masked else "finished")
            for created, agents, reward, masked in episodes
        ]
    )
    total_K = rewarded(PARL(config), step, group)
    left = {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.25}.get(step, 0.0)  # half of eight iterations
    for value, (created, agents, reward, masked) in zip(total_K, episodes, strict=True):
        if masked:
            assert value == 0
            continue
        count = created if counted == "created" else len({name for name, _ in agents})
        parallel = min(count, wanted) / wanted
        finish = sum(status == "finished" for _, status in agents) / len(agents) if agents else 0.0
        assert value == pytest.approx(left * 0.3 * parallel + left * 0.2 * finish + reward, rel=1e-15)
        assert left or value == reward  # to the last bit


@given(st.sampled_from(["linear", "cosine"]), st.floats(0, 1), st.floats(0, 1), st.integers(1, 60), st.integers(0, 60))
def test_the_weights_are_held_then_fall_and_are_exactly_zero_from_the_end_of_the_decay_on(
    shape, hold, decay, iterations, reached
):
    for hold_until in (0.0, 1.5):
        parl = ParlConfig(parallel=1.0, hold=hold, decay=decay, shape=shape, hold_until=hold_until)
        found = [annealing(parl, iteration, iterations, reached) for iteration in range(2 * iterations + 61)]
        begins = max(round(hold * iterations), reached)
        length = max(1, round(decay * iterations))
        assert found == sorted(found, reverse=True) and set(found[: begins + 1]) == {1.0}
        if not decay:
            assert set(found) == {1.0}
            continue
        assert all(value > 0 for value in found[: begins + length]) and set(found[begins + length :]) == {0.0}
        for k, value in enumerate(found[begins : begins + length]):
            exact = 1 - k / length if shape == "linear" else math.cos(math.pi * k / length / 2) ** 2
            assert value == pytest.approx(exact, rel=1e-9, abs=1e-15)
    assert {annealing(parl, iteration, 9, None) for iteration in range(20)} == {1.0}


def test_an_iteration_that_does_not_exist_is_refused():
    for iteration, iterations in ((-1, 3), (0, 0)):
        with pytest.raises(ValueError, match="does not exist"):
            annealing(ParlConfig(), iteration, iterations, None)


def run_of(method, groups_by_step, first=1):
    """The weights of each iteration of a run, and what it records."""
    weights, records = [], []
    for step, groups in enumerate(groups_by_step, first):
        for group in groups:
            rewarded(method, step, group)
        weights.append([term.weight for term in groups[0].terms[-2:]])
        records.append(method.record(step, groups))
    return weights, records


def test_weights_wait_for_a_parallelism_and_a_run_that_was_killed_goes_on_with_the_same_ones():
    config, rng = tiny(**SETTINGS | {"rl.parl.hold_until": 1.4, "rl.parl.hold": 0.125}), np.random.default_rng(0)
    serial, wide = agent(rng, 0, []), agent(rng, 2, [("a", "finished")] * 4)
    made = lambda: [[group_of(*each)] for each in ([serial] * 2, [serial] * 2, [wide] * 2, *[[serial] * 2] * 5)]  # noqa: E731
    weights, records = run_of(PARL(config), made())
    factors = [1, 1, 1, 1, 0.75, 0.5, 0.25, 0]  # the third iteration was parallel, the fourth begins the decay
    assert weights == [[0.3 * factor, 0.2 * factor] for factor in factors]
    for killed in range(1, 8):
        before, after = PARL(config), PARL(config)
        run_of(before, made()[:killed])
        after.restore(decode(encode({"drawn": 4} | before.extra())))
        assert run_of(after, made()[killed:], killed + 1) == (weights[killed:], records[killed:])
    assert run_of(PARL(config), [[group_of(serial)]] * 8)[0][-1] == [0.3, 0.2]


def test_metrics_of_an_iteration_and_of_an_evaluation():
    rng = np.random.default_rng(0)
    config = tiny(**SETTINGS)
    first = agent(rng, 3, [("a", "finished"), ("b", "truncated"), ("a", "finished")], reward=0.5)
    other = agent(rng, 0, [], status="truncated", reward=0.0)
    masked = agent(rng, 5, [("a", "finished")], status="masked")
    record = PARL(config).record(3, [group_of(first, other, masked), group_of(first, kind=CRITIC)])
    # Answers of the first: 3 calls that create, 3 assignments in one stage, none; of the other 1 step for each.
    expected = {
        "created": 3 / 2, "used": 2 / 2, "assigned": 3 / 2, "finished": 2 / 2, "total_steps": (3 + 1 + 1 + 3 + 3) / 2,
        "critical_steps": (3 + 1 + 1 + 1 + 3) / 2, "peak": 3 / 2, "peak_max": 3, "score": 0.25, "truncated": 0.5,
        "parallel": 0.25, "finish": 1 / 3, "parallelism": 11 / 9, "orchestrator_tokens": 12, "tokens/helper": 9 / 2,
        "parallel_weight": 0.15, "finish_weight": 0.1,
    }  # fmt: skip
    assert record == pytest.approx({f"swarm/{name}": value for name, value in expected.items()})
    other.domain = "e"
    evaluation = asyncio.run(PARL(config).evaluate([group_of(first, masked), group_of(other, masked)]))
    names = [name for name in expected if not name.endswith("_weight")]
    both = {f"eval/swarm/{name}": expected[name] for name in names}
    by_domain = {"score/d": 0.5, "score/e": 0, "parallelism/d": 8 / 6, "parallelism/e": 1}
    by_domain |= {"critical_steps/d": 6, "critical_steps/e": 3}
    assert evaluation == pytest.approx(both | {f"eval/swarm/{name}": value for name, value in by_domain.items()})


def test_a_run_without_weights_has_no_terms_and_metrics_from_its_first_sub_agent_on():
    rng, method = np.random.default_rng(0), PARL(tiny())
    single, several = group_of(agent(rng, 0, [])), group_of(agent(rng, 1, [("a", "finished")]))
    assert rewarded(method, 1, several) == [1.0] and len(several.terms) == 1
    assert (method.record(1, [single]), asyncio.run(method.evaluate([single])), method.extra()) == ({}, {}, {})
    assert method.record(2, [several])["swarm/created"] == 1
    resumed = PARL(tiny())
    resumed.restore(method.extra())
    for each in (method, resumed):
        assert each.record(3, [single])["swarm/parallelism"] == 1 and "swarm/parallel_weight" not in each.record(3, [])


def gradient(rows, table):
    """The loss of K2.5 over rows ``[S]`` of a model of pairs of tokens: logits float32 ``[V, V]`` by the token before.

    Returns value and gradient.
    """
    batch, loss = stack_rows(rows), make_policy_loss(tiny(**{"rl.loss.name": "k2.5"}).rl.loss)

    def total(table):
        previous = np.maximum(batch.parent, 0)
        before_BS = np.take_along_axis(batch.tokens, previous, 1)
        logprobs = jax.nn.log_softmax(table)[before_BS, batch.tokens]
        scores, rows = TokenScores(logprobs), Rows(jnp.asarray(batch.exit), jnp.arange(batch.tokens.shape[1]))
        terms, denominators = loss(scores, batch.targets, rows), loss.denominators(batch.targets)
        return sum(term / denominators[name] for name, (term, _) in terms.items() if term is not None)

    return jax.jit(jax.value_and_grad(total))(table)


def formula(trajectories, advantages, table):
    """The same in float64, over the sampled tokens of trajectories."""
    loss, count = 0.0, 0
    policy = tiny(**{"rl.loss.name": "k2.5"}).rl.loss
    low, high = policy.band
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        (leaf,) = trajectory.leaves()
        path = [trajectory.nodes[index] for index in trajectory.path(leaf)]
        tokens = np.concatenate([node.tokens for node in path])
        old, mask = (np.concatenate([getattr(node, name) for node in path]) for name in ("logprobs", "mask"))
        for place in np.flatnonzero(mask):
            logits = table[tokens[place - 1]]
            logprob = logits[tokens[place]] - np.log(np.exp(logits).sum())
            ratio = logprob - float(old[place])
            loss -= min(max(np.exp(ratio), low), high) * advantage - policy.tau * ratio**2
            count += 1
    return loss / count


def disjoint(rng, **options):
    """A group of two agents whose sub-agents speak of tokens from 40 on in their own contexts."""
    agents = [
        agent(rng, 1, [("a", "finished"), ("b", "truncated")], sample=0, **options),
        agent(rng, 0, [("a", "finished")], reward=0.25, sample=1, **options),
    ]
    for each in agents:
        for node in each.nodes:
            node.tokens[:] %= 40
        for child in each.spawned.values():
            for node in child.nodes:
                node.tokens[:] = 40 + node.tokens % 10
    return agents


def packed(agents, **overrides):
    (update,) = (
        trainer([], **overrides | {"rl.parl.parallel": 0.5, "rl.parl.agents": 2}).pack([scored(agents)]).values()
    )
    return update.rows


def scored(agents, **overrides):
    group = group_of(*agents)
    rewarded(PARL(tiny(**{"rl.parl.parallel": 0.5, "rl.parl.agents": 2} | overrides)), 1, group)
    return group


def test_only_what_the_orchestrator_sampled_has_a_gradient():
    """Rewards 1 + 0.5 and 0.25 + 0.25: the advantages are 0.5 and -0.5."""
    rng = np.random.default_rng(1)
    agents = disjoint(rng, role="policy")
    table = rng.normal(size=(VOCAB, VOCAB)).astype(np.float32)
    value, slopes = gradient(packed(agents), table)
    assert not np.asarray(slopes[40:]).any() and np.asarray(slopes[:40]).any()
    exact = lambda table: formula(agents, [0.5, -0.5], table)  # noqa: E731
    assert value == pytest.approx(exact(table.astype(float)), rel=1e-5)
    check_slopes(slopes, exact, table.astype(float), rng)
    for each in agents:  # what they have sampled, and how likely it was, changes nothing, bit for bit
        for child in each.spawned.values():
            for node in child.nodes:
                node.tokens[:] = rng.integers(0, VOCAB, len(node.tokens))
                node.logprobs[:] = -rng.random(len(node.tokens))
    again = gradient(packed(agents), table)
    assert again[0] == value and again[1].tobytes() == slopes.tobytes()


def check_slopes(slopes, function, table, rng, step=1e-5):
    """Central differences in float64, of some entries of the table that have a gradient and of some that have none."""
    moved = np.argwhere(np.asarray(slopes))
    chosen = [*moved[rng.choice(len(moved), 12, replace=False)], *rng.integers(0, VOCAB, (4, 2))]
    for place in map(tuple, chosen):
        low, high = table.copy(), table.copy()
        low[place] -= step
        high[place] += step
        difference = (function(high) - function(low)) / (2 * step)
        assert float(slopes[place]) == pytest.approx(difference, rel=2e-3, abs=2e-6)


def joint_samples(agents, **overrides):
    group = scored(agents, **overrides)
    config = tiny(**{"rl.parl.parallel": 0.5, "rl.parl.agents": 2} | overrides)
    (samples,), flat = training_samples(config.rl, [group], PARL(config).samples)
    return samples, flat


@pytest.mark.parametrize("scale", ["none", "std"])
def test_sub_agents_learn_by_the_advantage_of_their_agent_or_of_their_role(scale):
    agents = disjoint(np.random.default_rng(1), role="policy")
    options = {"rl.advantage.scale": scale}
    children = [child for each in agents for child in each.spawned.values()]
    shared, _ = joint_samples(agents, **options | {"rl.parl.joint": "shared"})
    assert [one.trajectory for one in shared] == [*agents, *children] and {one.domain for one in shared} == {0}
    unit = 1.0 if scale == "std" else 0.5
    assert [one.advantage for one in shared] == [unit, -unit, unit, unit, -unit]
    role, _ = joint_samples(agents, **options | {"rl.parl.joint": "role"})
    rewards = np.array([1.0, 0.0, 0.25])  # the second one was cut
    expected = rewards - rewards.mean()
    expected /= rewards.std() if scale == "std" else 1
    assert [one.advantage for one in role[:2]] == [unit, -unit]
    np.testing.assert_allclose([one.advantage for one in role[2:]], expected, rtol=1e-6)


def test_joint_training_has_the_gradient_of_its_formula():
    rng = np.random.default_rng(2)
    agents = disjoint(rng, role="policy")
    children = [child for each in agents for child in each.spawned.values()]
    training = trainer([], **{"rl.parl.joint": "shared"})
    training._further = PARL(tiny(**{"rl.parl.joint": "shared"})).samples
    table = rng.normal(size=(VOCAB, VOCAB)).astype(np.float32)
    value, slopes = gradient(training.pack([scored(agents)])[0].rows, table)
    exact = lambda table: formula([*agents, *children], [0.5, -0.5, 0.5, 0.5, -0.5], table)  # noqa: E731
    assert value == pytest.approx(exact(table.astype(float)), rel=1e-5)
    check_slopes(slopes, exact, table.astype(float), rng)
    assert np.asarray(slopes[40:]).any()


def test_frozen_masked_and_environments_sub_agents_do_not_learn_and_those_below_them_may():
    rng = np.random.default_rng(3)
    agents = disjoint(rng)  # of the role helper
    below, user = single_turn(rng), single_turn(rng)
    below.metadata[ROLE] = user.metadata[ROLE] = "policy"
    add_spawned(agents[0].spawned[0], 0, (1, 0), below)
    add_spawned(agents[0], 2, (1, NO_CALL), user)
    masked = agent(rng, 0, [("a", "masked"), ("b", "finished")], role="policy", sample=2)
    lost = agent(rng, 0, [("a", "finished")], role="policy", status="masked", sample=3)
    for joint in ("shared", "role"):
        samples, _ = joint_samples([*agents, masked, lost], **{"rl.parl.joint": joint})
        assert [one.trajectory for one in samples[3:]] == [below, masked.spawned[1]]
    assert len(joint_samples(agents)[0]) == 2


def test_a_group_is_flat_where_neither_its_agents_nor_their_sub_agents_differ():
    rng, changes = np.random.default_rng(4), {"rl.parl.joint": "role", "rl.skip_flat_groups": True}
    same = [agent(rng, 0, [("a", "finished"), ("b", "finished")], role="policy", sample=i) for i in (0, 1)]
    cut = [agent(rng, 0, [("a", "finished"), ("b", "truncated")], role="policy", sample=i) for i in (0, 1)]
    for agents, is_flat in itertools.product([same, cut], [True]):
        group = scored(agents)
        config = tiny(**changes)
        samples, flat = training_samples(config.rl, [group], PARL(config).samples)
        assert (flat, len(samples)) == ((1, 0) if agents is same else (0, 1)) and is_flat


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hold": 0.5, "decay": 0.6}, "hold 0.5 and decay 0.6 are more than the run together"),
        ({"hold_until": 2.0}, "hold_until 2.0 delays a decay that there is not"),
        ({"hold_until": 2.0, "parallel": 0.1, "decay": 0.0}, "hold_until 2.0 delays a decay that there is not"),
        ({"parallel": 0.1, "decay": 0.0, "hold": 0.5}, "hold 0.5 and shape linear are of a decay that there is not"),
        ({"parallel": 0.1, "decay": 0.0, "shape": "cosine"}, "shape cosine are of a decay that there is not"),
    ],
)
def test_settings_without_effect_are_one_line(changes, words):
    with refused(words):
        check_config(tiny(**{f"rl.parl.{name}": value for name, value in changes.items()}))


def test_joint_training_and_teachers_exclude_each_other():
    changes = {"rl.distill.weight": 1.0, "rl.distill.teachers": ("a=b",), "rl.parl.joint": "role"}
    with refused("rl.parl.joint role and rl.distill.weight exclude each other"):
        check_config(tiny(**changes))
