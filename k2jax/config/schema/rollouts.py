"""Reinforcement learning up to the rewards: tasks, generation, verifiers, the critic, and budgets of tokens."""

from __future__ import annotations

import dataclasses
from typing import Literal

from k2jax.config.ranges import (
    IntFromTwo,
    NonNegativeFloat,
    NonNegativeInt,
    Percentile,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    RewardWeight,
    Share,
)

LongPrompts = Literal["refuse", "skip"]
RoutingKind = Literal["own", "record", "replay"]
SamplerKind = Literal["lockstep", "workers"]
SandboxKind = Literal["bubblewrap", "nsjail", "kubernetes", "e2b", "unsafe"]
"""All backends of sandboxes, see ``k2jax.agents.sandbox.backends``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """One class of tasks of the mixture: where prompts come from, and how they are sampled."""

    dataset: str = "characters"  #: name of a registered dataset
    options: tuple[str, ...] = ()  #: options of the dataset, each "name=value"
    weight: PositiveFloat = 1.0  #: relative share of the prompts
    max_tokens: PositiveInt = 256  #: most tokens of a response; a longer one is cut there [tokens]
    verifier_weight: RewardWeight = 1.0  #: of the dataset's verifier in the reward; 0 asks it in evaluations alone
    verifier_weight_final: RewardWeight | None = None  #: at the end of reward_decay; None is the same throughout
    judge_weight: RewardWeight = 0.0  #: of the mean win over the others of the group, by rl.critic's judge
    judge_weight_final: RewardWeight | None = None  #: at the end of reward_decay; None is the same throughout
    overlong_penalty: RewardWeight = 0.0  #: subtracted from the reward of a response that was cut
    overlong_penalty_final: RewardWeight | None = None  #: at the end of reward_decay; None is the same
    reward_decay: Share = 0.0  #: share of the run over which weights of rewards change linearly; 0 is no change
    temperature: PositiveFloat = 1.0  #: sampling temperature of the first iterations
    temperature_final: PositiveFloat = 1.0  #: temperature from the end of the decay on
    temperature_decay: Share = 0.0  #: share of the run over which the temperature falls linearly; 0 is no decay
    top_p: PositiveShare = 1.0  #: keeps the most likely tokens whose probabilities reach this sum; 1 keeps all
    top_k: NonNegativeInt = 0  #: keeps this many of the most likely tokens; 0 keeps all
    thinking: bool = True  #: whether answers begin with reasoning, of models that reason; false is instant mode
    environment: str = ""  #: name of the environment; empty is the dataset's choice, or with tools "tools"
    tools: tuple[str, ...] = ()  #: toolsets, each "NAME option=value ..."; empty is the dataset's choice
    scaffold: str = ""  #: "NAME option=value ..."; empty is the dataset's choice
    verifier: str = ""  #: name of the verifier; empty is the dataset's choice
    components: tuple[str, ...] = ()  #: prompt components in order, each "NAME option=value ..."
    steps: NonNegativeInt = 0  #: calls of tools, and answers without one, of an episode; 0 is the dataset's choice
    critical_steps: NonNegativeInt = 0  #: own steps, and of each turn those of its longest sub-agent; 0 is no limit
    total_steps: NonNegativeInt = 0  #: own steps and those of all sub-agents; 0 is no limit
    episode_tokens: NonNegativeInt = 0  #: most sampled tokens of an episode; 0 is the dataset's choice [tokens]
    limits: tuple[str, ...] = ()  #: of sandboxes, "memory=MIB", "disk=MIB", "files=N", "processes=N"; "test_seconds=S"
    episode_prompt_tokens: NonNegativeInt = 0  #: most tokens of all prompts of an episode; 0 is no limit [tokens]
    judge_truncated: bool = True  #: ask the verifier of files and patches where a budget ended the episode; else 0
    pass_rates: str = ""  #: JSON file by python -m k2jax.trajectories --pass_rates, to filter by difficulty; empty: all
    pass_band: tuple[Share, ...] = (0.1, 0.9)  #: least and largest pass rate of the tasks that are trained on

    @property
    def is_verified(self) -> bool:
        """Whether the verifier is a term of the rewards of training."""
        return bool(self.verifier_weight or self.verifier_weight_final)

    @property
    def is_judged(self) -> bool:
        """Whether comparisons by the judge are a term of the rewards of training."""
        return bool(self.judge_weight or self.judge_weight_final)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """A frozen checkpoint with an engine of its own, which episodes ask by its name: a sub-agent, a user, a judge."""

    checkpoint: str = ""  #: a checkpoint argument, whose tokenizer is the run's
    max_tokens: PositiveInt = 256  #: most tokens of a message [tokens]
    temperature: NonNegativeFloat = 1.0  #: sampling temperature; 0 takes the most likely tokens
    top_p: PositiveShare = 1.0  #: keeps the most likely tokens whose probabilities reach this sum; 1 keeps all
    top_k: NonNegativeInt = 0  #: keeps this many of the most likely tokens; 0 keeps all
    slots: PositiveInt = 16  #: sequences that run at a time, over all devices
    later: tuple[str, ...] = ()  #: checkpoints, of any architecture, that replace it one after the other
    later_from: tuple[int, ...] = ()  #: iterations, from 2, at whose beginnings they do; one for each, ascending


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Generation of the responses of one iteration, on the devices of the training."""

    prompts: PositiveInt = 64  #: prompts of an iteration
    samples: IntFromTwo = 8  #: responses to each prompt (K)
    sampler: SamplerKind = "lockstep"  #: lockstep repeats bit for bit; workers waits for no slow tool
    workers: NonNegativeInt = 0  #: processes that run episodes, of sampler workers; 0 runs them in the controller
    ray: str = ""  #: Ray cluster that runs the workers: its address, auto, or local; empty is this machine
    look_ahead: PositiveInt = 2  #: iterations by which a slow prompt may be overtaken, of sampler workers; 1 is none
    trace: NonNegativeInt = 0  #: iteration whose trace is written to trace-STEP.json, of sampler workers; 0 is none
    token_cap: NonNegativeInt = 0  #: tokens that a response may grow by in one iteration; 0 is no cap [tokens]
    concurrency: NonNegativeInt = 0  #: episodes at a time: in lockstep one batch after another; 0 is an iteration's
    slots: PositiveInt = 64  #: sequences that run at a time, over all devices
    max_length: IntFromTwo = 512  #: longest sequence, prompt and response together [tokens]
    long_prompts: LongPrompts = "refuse"  #: a task whose prompt is as long as that ends the run, or is left out
    data: PositiveInt = 1  #: groups of the engine's devices, each with all experts
    expert: PositiveInt = 1  #: devices of the engine that share the experts
    routing: RoutingKind = "own"  #: who chooses experts in training; record keeps the engine's choice, replay uses it
    sandbox: str = "bubblewrap"  #: backend for the tools of an agent, a SandboxKind and its options
    offload_state: bool = False  #: rests the training state in host memory meanwhile, roles' weights while training
    publish: bool = False  #: keep the current weights in shared memory too, for python -m k2jax.serve --published
    publish_listen: str = ""  #: HOST:PORT that gives them to engines of other hosts; of process i a port i higher


@dataclasses.dataclass(frozen=True)
class EnginesConfig:
    """Where the policy's engines are, and how those that have processes of their own join the run."""

    placement: Literal["colocated", "separate"] = "colocated"  #: on the trainer's devices, or in processes of their own
    start: NonNegativeInt = 1  #: engines that the run itself starts on its machine, of placement separate
    listen: str = ""  #: HOST:PORT where engines of other machines join, of placement separate; empty is nowhere


@dataclasses.dataclass(frozen=True)
class ScoringConfig:
    """Verifiers in processes that can be killed."""

    workers: PositiveInt = 2  #: processes
    timeout: PositiveFloat = 10.0  #: limit of one verdict, without waits for a busy machine [s]
    retries: NonNegativeInt = 2  #: tries after an error of the infrastructure; then the sample is masked
    sandbox: str = "bubblewrap"  #: backend for verifiers that run code, a SandboxKind and its options
    environment: tuple[str, ...] = ()  #: variables that verifiers get beside paths and languages, such as that of a key


@dataclasses.dataclass(frozen=True)
class ToggleConfig:
    """Toggle (Kimi K2.5, section 4.4): phases in which a right response counts only within a budget of tokens."""

    period: NonNegativeInt = 0  #: iterations of a phase, the first of which has budgets; 0 turns Toggle off
    accuracy: Share = 0.75  #: mean reward of a group from which on the budget of its prompt holds
    percentile: Percentile = 50.0  #: of the lengths of right responses of the initial policy: a prompt's budget
    samples: PositiveInt = 8  #: responses of the initial policy to every prompt, from which budgets come


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParlConfig:
    """PARL (Kimi K2.5, section 3): rewards for work that sub-agents do at once, annealed to exactly 0."""

    parallel: RewardWeight = 0.0  #: at the beginning, of min(1, agents of an episode / rl.parl.agents) in its reward
    finish: RewardWeight = 0.0  #: at the beginning, of finished over assigned tasks of sub-agents; 0 where none is
    agents: PositiveInt = 4  #: sub-agents of an episode from which on the first of these terms is 1
    counted: Literal["assigned", "created"] = "assigned"  #: sub-agents that it counts: those with a task, or all
    hold: Share = 0.0  #: share of the run for which both weights stay as they are
    hold_until: NonNegativeFloat = 0.0  #: they also stay until an iteration has this parallelism; 0 waits for none
    decay: Share = 0.6  #: share of the run over which they then go to 0, and stay there; 0 is no decay
    shape: Literal["linear", "cosine"] = "linear"  #: of the decay
    joint: Literal["off", "shared", "role"] = "off"  #: the policy learns as a sub-agent, too, by such advantages


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """Rewards from pairwise comparisons by rubrics, and the policy's training as a judge (Kimi K2, section 3.2.2)."""

    judge: Literal["policy", "role", "endpoint"] = "policy"  #: who compares: the policy, one of rl.roles, or a server
    role: str = ""  #: of rl.roles, that compares where judge is role; its sampling is not read
    format: Literal["chat", "compact"] = "chat"  #: of questions to the judge; compact is for models of characters
    rubrics: tuple[str, ...] = ()  #: YAML files of rubrics; empty is the packaged core and prescriptive ones
    max_tokens: PositiveInt = 256  #: most tokens of a verdict; one that is cut is no verdict [tokens]
    share: Share = 0.0  #: closed loop: prompts to the policy as judge, over prompts of an iteration; 0 turns it off
    temperature: PositiveFloat = 1.0  #: of the closed loop's sampled verdicts; verdicts that give rewards are greedy
    api: Literal["chat", "completions"] = "chat"  #: text over any endpoint, or token ids over k2jax.serve and vLLM
    url: str = ""  #: of the endpoint, OpenAI-compatible, without /v1
    model: str = ""  #: the name by which the endpoint knows its model
    tokenizer: str = ""  #: checkpoint of the endpoint's tokenizer, for completions; empty is the policy's
    api_key_variable: str = ""  #: name of the environment variable that holds the endpoint's key; empty is no key
    concurrency: PositiveInt = 16  #: requests to the endpoint at a time
    timeout: PositiveFloat = 120.0  #: longest silence of the endpoint [s]
