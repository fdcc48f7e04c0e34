"""The loop of reinforcement learning: roll out, score, train, bring the new weights to the engine.

It is the loop of Kimi K1.5, K2 and K2.5 (K2, section 3.2; K2.5, section 4). An iteration is a function of the
checkpoint and its number: a run that is killed at any moment and started again repeats it bit for bit. Verdicts of
verifiers are read back from their log, and rollouts that were under way are sampled again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
import time

from k2jax import processes
from k2jax.agents.mixture import TaskMixture
from k2jax.config.schema import Config
from k2jax.inference import LockstepClient
from k2jax.losses.registry import make_policy_loss
from k2jax.rl.critic.setup import open_critic, rubrics_identity
from k2jax.rl.distillation.teachers import open_teachers
from k2jax.rl.evaluation import HeldOutTasks, held_out_words
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.masked import MaskedWatch
from k2jax.rl.measure import engine_record, iteration_record, stale_share
from k2jax.rl.report import write_results
from k2jax.rl.retention import VerdictRetention
from k2jax.rl.rewards.toggle import Toggle
from k2jax.rl.rollouts import Rollouts
from k2jax.rl.setup import check_config, open_chat, open_images, open_scorer, publisher
from k2jax.rl.sync.offload import at_rest
from k2jax.rl.sync.weight_sync import WeightSync, colocated_engine
from k2jax.rl.updates import Updates
from k2jax.train.corpus import ptx_data
from k2jax.train.program import Program
from k2jax.train.run import Run
from k2jax.train.workdir import claimed
from k2jax.trajectory.store import TrajectoryStore


def train(config: Config, workdir: str | Path, command: str | None = None) -> int:
    """Trains to ``config.train.steps`` iterations, resuming from the workdir's newest checkpoint.

    Args:
        config: the experiment.
        workdir: the run's folder; see the package's documentation for what it holds.
        command: the command line that started it, for the report.

    Returns:
        The exit code of ``python -m k2jax.rl``.

    Raises:
        UserError: for a mistake in the config, the tasks or the workdir.
    """
    check_config(config)
    with claimed(workdir, config) as path, contextlib.ExitStack() as opened:
        tokenizer, chat = open_chat(config, path)
        mixture = TaskMixture(config.rl.tasks, config.train.seed)
        toggle = Toggle(config, mixture)
        scorer = opened.enter_context(open_scorer(config, path, mixture))
        distill = config.rl.distill.weight if config.rl.distill.into == "component" else 0.0
        program = Program(config, loss=make_policy_loss(config.rl.loss, entropy=True, distill=distill))
        identity = {"tokenizer": tokenizer.fingerprint, "set of tasks": mixture.fingerprint} | rubrics_identity(config)
        if (ptx := ptx_data(config, tokenizer)) is not None:
            identity["corpus"] = ptx.fingerprint
        if (teachers := open_teachers(config, program, tokenizer, path)) is not None:
            identity["set of teachers"] = teachers.fingerprint
        with Run(program, path, identity) as run:
            engine = colocated_engine(program, config.rl.rollout)
            media = open_images(config.model, config.data.images, tokenizer)
            sync, updates = WeightSync(program, engine), Updates(run, toggle, ptx, teachers, media)
            event_loop = opened.enter_context(EventLoop())
            client = LockstepClient(engine)
            critic = opened.enter_context(open_critic(config, client, chat, tokenizer, scorer.log, event_loop))
            rollouts = Rollouts(config, mixture, client, chat, tokenizer, scorer, critic=critic, media=media)
            if run.extra:
                rollouts.restore(run.extra)
                toggle.restore(run.extra)
            held_out = HeldOutTasks(config, mixture, rollouts)
            store = TrajectoryStore(path / "trajectories", keep=config.rl.keep_trajectories)
            published = opened.enter_context(publisher(config, path, engine))
            verdicts = VerdictRetention(scorer.log, path)
            verdicts.note(run.start, rollouts.began(run.start))
            sync.push(run.state.params, run.start)
            published(run.start)
            masked = MaskedWatch(run.note)
            for step in run.steps():
                if step == 1:
                    with at_rest(run):
                        event_loop.run(toggle.sample(rollouts, run.note))
                if step == 1 and held_out.is_due(0):
                    with at_rest(run):
                        untrained = event_loop.run(held_out.evaluate(0))
                    run.log(0, untrained)
                    run.note(held_out_words(0, untrained))
                sync.check(step - 1)
                began, before = time.perf_counter(), engine.stats()
                with at_rest(run):
                    groups = event_loop.run(rollouts.collect(step))
                seconds, used = time.perf_counter() - began, engine_record(before, engine.stats())
                if config.rl.rollout.offload_state:
                    engine.release()
                record = iteration_record(config, groups, rollouts.sampled_tokens, seconds) | used
                record["stale_tokens"] = stale_share(groups, step - 1)
                if processes.is_first():
                    store.write(step, [trajectory for group in groups for trajectory in group.trajectories])
                masked.check(step, groups)
                record |= updates.train(step, groups)
                if config.rl.record_masks and processes.is_first():  # what training left out is known only now
                    store.write(step, [trajectory for group in groups for trajectory in group.trajectories])
                synced = sync.push(run.state.params, step)
                record |= {"sync_seconds": synced.seconds, "sync_gb_per_second": synced.bytes / synced.seconds / 1e9}
                published(step)
                if held_out.is_due(step):
                    with at_rest(run):
                        record |= event_loop.run(held_out.evaluate(step))
                    run.note(held_out_words(step, record))
                run.log(step, record)
                run.save_when_due(step, extra=rollouts.extra() | toggle.extra())
                verdicts.note(step, rollouts.began(step))
                if step % config.checkpoint.every == 0:
                    verdicts.tidy()
                if processes.is_first() and step % config.log.plots_every == 0 and step != config.train.steps:
                    write_results(run, "running", command)
        if processes.is_first():
            write_results(run, run.status, command)
        return run.exit_code
