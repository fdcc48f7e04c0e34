"""Policy objectives path by path in NumPy float64, from trajectories alone: no rows, no packing, no shared tokens."""

from collections import defaultdict
from typing import NamedTuple
import zlib

import numpy as np

from k2jax.config import IcePopConfig, PolicyLossConfig
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.types import ROOT
from tests.rl.trees import sampled

TAU, LOW, HIGH = 0.1, 0.8, 1.25
BAND = {"ratio_low": LOW, "ratio_high": HIGH}
ICEPOP = {"old": "recompute", "icepop": IcePopConfig(on=True, low=0.9, high=1.15)}  # leaves out a third of the tokens
CONFIGS = {
    "k2": PolicyLossConfig(name="k2", tau=TAU),
    "k2.5": PolicyLossConfig(name="k2.5", tau=TAU, **BAND),
    "kat": PolicyLossConfig(name="kat", **BAND),
    "kat tokens": PolicyLossConfig(name="kat", aggregation="token", **BAND),
    "gspo": PolicyLossConfig(name="gspo", **BAND),
    "ppo": PolicyLossConfig(name="ppo", **BAND),
    "reinforce": PolicyLossConfig(name="reinforce"),
    "k2.5 with icepop": PolicyLossConfig(name="k2.5", tau=TAU, **BAND, **ICEPOP),
    "k2 with icepop": PolicyLossConfig(name="k2", tau=TAU, **ICEPOP),
    "kat with icepop": PolicyLossConfig(name="kat", **BAND, **ICEPOP),
    "ppo with icepop": PolicyLossConfig(name="ppo", **BAND, **ICEPOP),
}


class Token(NamedTuple):
    """A sampled token: all token ids up to and with it, its recorded log-probability, its temperature."""

    context: tuple[int, ...]
    logprob: float
    temperature: float


def old_logprob(token):
    """log pi_old of a Token: another number near the recorded one."""
    draw = np.random.default_rng(zlib.crc32(repr(token).encode()))
    return float(np.float32(token.logprob + draw.normal(0, 0.12)))


def icepop_factor(token):
    """The factor of a Token's policy gradient."""
    k = np.exp(old_logprob(token) - token.logprob)
    return k if ICEPOP["icepop"].low <= k <= ICEPOP["icepop"].high else 0.0


class Response(NamedTuple):
    """An advantage, and the tokens of each turn."""

    advantage: float
    turns: list[list[Token]]


def random_tree(rng, budget, key=(1, 0, 0), vocab=50):
    """A trajectory of up to ``budget`` tokens whose nodes have up to four children; calls have numbers of their own."""
    trajectory = Trajectory("task", "domain", key, status="finished")
    trajectory.add(Node.observed(ROOT, rng.integers(0, vocab, rng.integers(1, 6))))
    open_nodes, used, turn = [0], len(trajectory.nodes[0].tokens), 0
    while open_nodes:
        parent = open_nodes.pop(rng.integers(len(open_nodes)))
        for _ in range(rng.integers(1, 5)):
            count = int(rng.integers(1, 7))
            if used + count > budget:
                return trajectory
            used += count
            if turn == 0 or rng.random() < 0.7:
                node = sampled(rng, parent, count, turn, float(rng.choice([0.7, 1.0])))
                node.tokens[:] = rng.integers(0, vocab, count)
                turn += 1
            else:
                node = Node.observed(parent, rng.integers(0, vocab, count))
            open_nodes.append(trajectory.add(node))
    return trajectory


def without_thinking(rng, lost, key=(1, 0, 0), vocab=50):
    """Two turns; the second follows a rendered copy of the first without its ``lost`` first tokens, of five."""
    trajectory = Trajectory("task", "domain", key, status="finished")
    prompt = trajectory.add(Node.observed(ROOT, rng.integers(0, vocab, 3)))
    node = sampled(rng, prompt, 5, 0)
    node.tokens[:] = rng.integers(0, vocab, 5)
    trajectory.add(node)
    copy = trajectory.add(Node.observed(prompt, node.tokens[lost:]))
    seen = trajectory.add(Node.observed(copy, rng.integers(0, vocab, 2)))
    trajectory.add(sampled(rng, seen, 4, 1))
    return trajectory


def random_samples(rng, budget, groups=3, vocab=50):
    """Groups of whole trees, and of trees whose leaves are episodes of their own, which share sampled tokens."""
    samples = []
    for group in range(groups):
        for _ in range(rng.integers(1, 3)):
            if rng.random() < 0.25:
                tree = without_thinking(rng, int(rng.integers(4)), (1, group, 0), vocab)
            else:
                tree = random_tree(rng, budget, (1, group, 0), vocab)
            if rng.random() < 0.5:
                samples.append(TrainingSample(tree, float(rng.normal())))
            else:
                samples += [TrainingSample(episode, float(rng.normal())) for episode in episodes(tree)]
    return samples


def episodes(tree):
    """Every path of a tree as an episode."""
    for leaf in tree.leaves():
        path = tree.path(leaf)
        nodes = [tree.nodes[index] for index in path]
        if any(node.mask.any() for node in nodes):
            episode = Trajectory(tree.task, tree.domain, tree.key, status="finished")
            for place, node in enumerate(nodes):
                parts = {name: getattr(node, name) for name in Node.__dataclass_fields__}
                episode.add(Node(**parts | {"parent": place - 1}))
            yield episode


def responses_of(samples, shared_tokens):
    """What counts together: the sampled nodes of every path, or of every trajectory."""
    responses = []
    for trajectory, advantage, _ in samples:
        leaves = trajectory.leaves() if shared_tokens == "paths" else [None]
        for leaf in leaves:
            indices = trajectory.path(leaf) if leaf is not None else range(len(trajectory.nodes))
            turns = [_turn(trajectory, index) for index in indices if trajectory.nodes[index].mask.any()]
            if turns:
                responses.append(Response(advantage, turns))
    return responses


def _turn(trajectory, index):
    node = trajectory.nodes[index]
    ids, start = tuple(trajectory.path_tokens(index).tolist()), len(trajectory.path_tokens(node.parent))
    return [Token(ids[: start + t + 1], float(node.logprobs[t]), node.temperature) for t in range(len(node.tokens))]


def value_and_gradient(name, responses, scores):
    """The loss, and its gradient to the log-probability of each token, summed over the responses that hold it.

    Args:
        name: one of CONFIGS.
        responses: all of the batch.
        scores: log-probability of each Token under the policy.
    """
    config, total, gradient = CONFIGS[name], 0.0, defaultdict(float)
    count = sum(len(turn) for response in responses for turn in response.turns)
    for advantage, turns in responses:
        tokens = [token for turn in turns for token in turn]
        ratios = {token: scores[token] - old_logprob(token) for token in tokens}
        factors = {token: icepop_factor(token) if config.icepop.on else 1.0 for token in tokens}
        if config.name in ("k2.5", "reinforce"):
            for token in tokens:
                value, slope = _token_gain(config.name, advantage, ratios[token], factors[token])
                total -= value / count
                gradient[token] -= slope / count
        elif config.name == "k2":
            pull = advantage - TAU * sum(ratios.values())
            total += pull**2 / (2 * TAU) / len(responses)
            for token in tokens:
                gradient[token] -= factors[token] * pull / len(responses)
        else:
            units = {"turn": turns, "sequence": [tokens], "token": [[token] for token in tokens]}[config.level]
            for unit in units:
                by_tokens = config.aggregation == "token" or config.level == "token"
                weight = len(unit) / count if by_tokens else 1 / len(units) / len(responses)
                ratio = np.exp(np.mean([ratios[token] for token in unit]))
                gain = min(ratio * advantage, np.clip(ratio, LOW, HIGH) * advantage)
                total -= weight * gain * (factors[unit[0]] if config.level == "token" else 1)
                free = ratio < HIGH if advantage > 0 else ratio > LOW
                for token in unit:
                    gradient[token] -= weight * free * ratio * advantage * factors[token] / len(unit)
    return total, gradient


def _token_gain(name, advantage, log_ratio, factor):
    if name == "reinforce":
        return factor * advantage * log_ratio, factor * advantage
    ratio = np.exp(log_ratio)
    pull = TAU * log_ratio**2
    slope = ratio * advantage if LOW <= ratio <= HIGH else 0.0
    return factor * np.clip(ratio, LOW, HIGH) * advantage - pull, factor * slope - 2 * TAU * log_ratio
