"""What the loop of ``k2jax.rl`` opens, for benchmarks: prompts of random letters, verdicts of a millisecond."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from k2jax.agents.mixture import TaskMixture
from k2jax.agents.scorer import Scorer
from k2jax.agents.verdicts import VerdictLog
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.bench.rl_tasks import DATASET
from k2jax.config import Config, defaults, resolve, task
from k2jax.inference import LockstepClient
from k2jax.losses.registry import make_policy_loss
from k2jax.rl.episodes import Episodes
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.inputs import open_chat
from k2jax.rl.lockstep import LockstepPrompts
from k2jax.rl.methods import Methods
from k2jax.rl.policy import Policy
from k2jax.rl.sampler import Sampler
from k2jax.rl.sync.weight_sync import WeightSync, colocated_engine
from k2jax.rl.updates import Trainer
from k2jax.text.chat import ChatBuilder
from k2jax.train.program import Program
from k2jax.train.run import Run

PROMPT, SAMPLES, PROMPTS, SLOTS = 128, 8, 32, 64  # tokens, responses to a prompt, prompts of an iteration, rows


class BenchLoop(contextlib.ExitStack):
    """Engine, verifiers, trainer and weight sync of a config.

    Attributes:
        event_loop, run, sync, trainer, client: those of the loop.
        scorer_without_log: a scorer that asks the verifier every time.
    """

    def __init__(self, config: Config, folder: Path):
        """Opens them in ``folder/run``, where a tokenizer is."""
        super().__init__()
        self._config, path = config, folder / "run"
        self._tokenizer, self._chat = open_chat(config, path)
        self._mixture = TaskMixture(config.rl.tasks, config.train.seed)
        pool = self.enter_context(VerifierPool(config.rl.scoring.workers))
        self._scorer, self.scorer_without_log = Scorer(pool, VerdictLog(path / "verdicts")), Scorer(pool)
        self.event_loop = self.enter_context(EventLoop())
        program = Program(config, loss=make_policy_loss(config.rl.loss, entropy=True))
        self.run = self.enter_context(Run(program, path, {}))
        engine = colocated_engine(program, config.rl.rollout)
        self.sync, self.trainer = WeightSync(program, engine), Trainer(self.run)
        self.sync.push(self.run.state.params, 0)
        self.client = LockstepClient(engine)

    def prompts(self, max_tokens: int, client: LockstepClient) -> LockstepPrompts:
        """Groups from the first prompt on, of at most ``max_tokens`` tokens a response."""
        tasks = {name: dataclasses.replace(each, max_tokens=max_tokens) for name, each in self._config.rl.tasks.items()}
        config = dataclasses.replace(self._config, rl=dataclasses.replace(self._config.rl, tasks=tasks))
        episodes = Episodes(config, client, self._chat, self._tokenizer, self._scorer)
        return LockstepPrompts(episodes, self._mixture, Methods())

    def prompt_tokens(self, number: int) -> tuple[int, ...]:
        """Token ids of a prompt, up to where the answer begins."""
        builder = ChatBuilder(self._chat)
        builder.add(self._mixture.prompt(number).task.instruction[0])
        builder.open_assistant()
        return tuple(builder.tokens)


def iterate(step: int, run: Run, sampler: Sampler, policy: Policy, trainer: Trainer, methods: Methods) -> None:
    """Does an iteration with what ``open_rl`` has opened, as ``k2jax.rl.loop.train`` does all of them."""
    policy.check(step - 1)
    groups = sampler.collect(step)
    with sampler.phase("train"):
        for number, packed in methods.prepare(step, trainer.pack(groups)).items():
            if (rows := methods.before_update(step, number, packed.rows)) is not None:
                trainer.update(number, rows)
    with sampler.phase("push"):
        policy.push(run.state.params, step)
    run.log(step, sampler.record() | trainer.record() | policy.record() | methods.record(step, groups))
    run.save_when_due(step, extra=sampler.extra() | methods.extra())
    sampler.saved(step)


def bench_config(model: str, longest: int, prompts: int = PROMPTS) -> Config:
    """A run of reinforcement learning on letters.

    Args:
        model: name of the preset.
        longest: most tokens of a response.
        prompts: of an iteration.
    """
    config = defaults("rl", model=model)
    config.model.vocab = 258
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "plain"
    config.data.sequence_length = 512
    config.rl.tasks = {"letters": task(dataset=DATASET, options=(f"length={PROMPT}",), max_tokens=longest)}
    config.rl.rollout.update({"prompts": prompts, "samples": SAMPLES, "slots": SLOTS})
    config.rl.rollout.max_length = PROMPT + 16 + longest
    config.train.batch_size = 8
    config.log.tensorboard = False
    return resolve(config)
