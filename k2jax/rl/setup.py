"""A run of reinforcement learning, opened: checked, resumed, and with its weights in the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
from pathlib import Path

from k2jax import processes
from k2jax.agents.scaffolds.check_place import check_place
from k2jax.agents.scaffolds.prompt_lengths import PromptLengths
from k2jax.agents.scorer import Scorer
from k2jax.config.checks import check_unread
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.inference import ContinuousClient, LockstepClient
from k2jax.inference.engine import Engine
from k2jax.inference.roles import FrozenModel, roles_in_lockstep
from k2jax.losses.base import Loss
from k2jax.losses.combined import CombinedLoss
from k2jax.losses.registry import make_policy_term
from k2jax.rl.engines.frozen_roles import open_frozen
from k2jax.rl.engines.separate_policy import PublishedPolicy, open_policy
from k2jax.rl.episodes import Episodes
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.followers.opening import open_commands
from k2jax.rl.followers.samplers import FollowingSampler, LeadingSampler
from k2jax.rl.inputs import open_chat, open_images, open_scorer
from k2jax.rl.lockstep import LockstepPrompts, LockstepSampler
from k2jax.rl.methods import METHODS, Methods, Parts, open_methods
from k2jax.rl.policy import Policy
from k2jax.rl.report import write_results
from k2jax.rl.sampler import Sampler
from k2jax.rl.updates import Trainer
from k2jax.rl.workers.opening import check_workers, open_workers
from k2jax.text.media_reading import MediaReader
from k2jax.train.ending import last_line
from k2jax.train.program import Program
from k2jax.train.run import Run, say
from k2jax.train.workdir import lock_workdir
from k2jax.trajectory.steps import POLICY


@contextlib.contextmanager
def open_rl(
    config: Config,
    workdir: str | Path,
    command: str | None = None,
    make_client: Callable[[Engine], ContinuousClient] = ContinuousClient,
) -> Iterator[tuple[Run, Sampler, Policy, Trainer, Methods]]:
    """Opens a run at its newest checkpoint, and writes its report when it ends.

    Args:
        config: the experiment.
        workdir: the run's folder; see the package's documentation for what it holds.
        command: the command line that started it, for the report.
        make_client: of the sampler ``workers``, what makes its client over the engine; measurements simulate one.

    Raises:
        UserError: for a mistake in the config, the tasks or the workdir.
    """
    check_config(config)
    with lock_workdir(workdir, config) as path, contextlib.ExitStack() as opened:
        commands = opened.enter_context(open_commands("the configuration", config))
        tokenizer, chat = open_chat(config, path)
        media = open_images(config.model, config.data.images, tokenizer)
        mixture, left_out = PromptLengths(config, chat, media).open_mixture()
        check_place(mixture.all_prompts(config.rl.eval_prompts), config.rl.rollout.sandbox)
        if left_out:
            say(left_out)
        # Of complete groups the verdicts are stored with their trajectories: a log of verdicts is of lockstep.
        log = path if config.rl.rollout.sampler == "lockstep" else None
        scorer = opened.enter_context(open_scorer(config, log, mixture))
        program, event_loop = Program(config, loss=loss_of(config)), opened.enter_context(EventLoop())
        identity = {"tokenizer": tokenizer.fingerprint, "set of tasks": mixture.fingerprint}
        parts = Parts(
            config=config,
            workdir=path,
            tokenizer=tokenizer,
            chat=chat,
            mixture=mixture,
            program=program,
            event_loop=event_loop,
            opened=opened,
            identity=identity,
            make_client=make_client,
            commands=commands,
        )
        methods = open_methods(parts)
        frozen = open_frozen(parts)
        with Run(program, path, identity) as run:
            parts.run, policy = run, open_policy(parts)
            sampler = open_sampler(parts, policy, scorer, media, methods, frozen)
            if run.extra:
                sampler.restore(run.extra)
                methods.restore(run.extra)
            sampler.begin(run.start)
            policy.push(run.state.params, run.start)
            trainer = Trainer(run, methods.has_signal, media, methods.samples, commands.check_rows)
            yield run, sampler, policy, trainer, methods
        if processes.is_first():
            write_results(run, run.status, command)
            print(last_line(run, command))


def open_sampler(
    parts: Parts,
    policy: Policy | PublishedPolicy,
    scorer: Scorer,
    media: MediaReader | None,
    methods: Methods,
    frozen: Mapping[str, FrozenModel],
) -> Sampler:
    """The sampler that the config names; ``parts.opened`` closes it. Of several processes the first has it."""
    commands = parts.commands
    engine = commands.engine(policy.engine) if isinstance(policy, Policy) else policy.pool
    there = {name: model.engine and commands.engine(model.engine) for name, model in frozen.items()}
    frozen = {name: model._replace(engine=there[name]) for name, model in frozen.items()}
    if parts.config.rl.rollout.sampler == "workers" and not commands.follows:
        return LeadingSampler(open_workers(parts, engine, scorer, media, methods, frozen), commands)
    client = LockstepClient(engine)
    roles = roles_in_lockstep(client, parts.chat, parts.tokenizer, frozen)
    episodes = Episodes(parts.config, client, parts.chat, parts.tokenizer, scorer, media=media, roles=roles)
    clients = {POLICY: client, **{name: role.client for name, role in roles.items()}}
    if commands.follows:
        return FollowingSampler(parts.run, engine, list(clients.values())[1:], episodes, parts.mixture, commands)
    prompts = LockstepPrompts(episodes, parts.mixture, methods)
    return LeadingSampler(LockstepSampler(parts.run, engine, parts.event_loop, prompts, clients, commands), commands)


def loss_of(config: Config) -> Loss:
    """The loss of the policy, and beside it the terms of methods."""
    policy = make_policy_term(config.rl.loss, entropy=True)
    # From the last method to the first: sums of three terms would round in another way.
    terms = [term for method in reversed(METHODS) if method.used(config) for term in method.terms(config)]
    return CombinedLoss(policy, *terms) if terms else policy


def check_config(config: Config) -> None:
    """Rejects what this loop cannot run, before anything is opened.

    Raises:
        UserError: in one line that names the keys.
    """
    rl, length = config.rl, config.data.sequence_length
    if config.stage != "rl":
        raise UserError(f"config.stage is {config.stage!r}; k2jax.rl runs 'rl', and k2jax.train the others")
    check_unread(config)
    if rl.rollout.max_length > length:
        raise UserError(
            f"config.rl.rollout.max_length {rl.rollout.max_length} is longer than a row of config.data.sequence_length "
            f"{length}; a response is trained on in one row"
        )
    for name, task in rl.tasks.items():
        if task.max_tokens >= rl.rollout.max_length:
            raise UserError(
                f"config.rl.tasks.{name}.max_tokens {task.max_tokens} leaves no room for a prompt in "
                f"config.rl.rollout.max_length {rl.rollout.max_length}"
            )
    if config.router.balance_loss:
        raise UserError("config.router.balance_loss counts rows of pretraining; set it to 0 for reinforcement learning")
    if rl.packing.layout == "tree" and config.parallel.expert_slots < 1:
        raise UserError(
            f"config.rl.packing.layout tree gives the gradient of all paths only where no token is dropped; set "
            f"config.parallel.expert_slots {config.parallel.expert_slots} to 1, or the layout to paths"
        )
    if rl.advantage.baseline == "none" and rl.advantage.scale != "none":
        raise UserError("config.rl.advantage.scale divides what a baseline has centred; set it to none, or a baseline")
    for name, task in rl.tasks.items():
        if not (task.is_verified or task.is_judged):
            raise UserError(f"config.rl.tasks.{name} rewards nothing; set its verifier_weight or judge_weight")
    check_workers(config)
    for method in METHODS:
        method.check(config)
    if rl.updates > rl.rollout.prompts:
        raise UserError(f"config.rl.updates {rl.updates} is more than config.rl.rollout.prompts {rl.rollout.prompts}")
