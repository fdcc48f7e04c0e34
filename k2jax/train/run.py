"""One run in one workdir: it starts or resumes, updates the state, logs and saves; it knows no data and no algorithm.

The state of a run is (checkpoint, step), and what a loop keeps beside it goes into the checkpoint's extra item: a run
that is killed at any moment and started again goes on as if nothing had happened. With several processes each of them
holds a Run and makes the same calls; the first one alone prints and writes, checkpoints apart, to which each adds what
lies on its devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
from pathlib import Path
import signal
import time
from typing import Any

import jax
import numpy as np
from rich.console import Console

from k2jax import optim, processes, runtime
from k2jax.batch import PackedBatch
from k2jax.checkpoint import Checkpoints, check_config, damaged
from k2jax.config.identity import fixed_keys, flat_keys
from k2jax.config.phases import run_phases
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.params import VISION
from k2jax.report.metrics import DAMAGED, FILE, MetricsLog
from k2jax.report.progress import Progress
from k2jax.report.scalar_writers import WandbProject
from k2jax.train.batch_checks import check_targets, check_tokens
from k2jax.train.history import changes_of, settings
from k2jax.train.init_from import pretrained_params, pretrained_tower
from k2jax.train.program import Program
from k2jax.train.record import Recorder, run_work
from k2jax.train.signals import STOP_CODES, StopAskedError, stop_on_signal
from k2jax.train.state import TrainState, non_finite_leaves, total_updates
from k2jax.train.step import StepMetrics
from k2jax.train.trace import StepTrace
from k2jax.train.unhealthy import some_of, unhealthy_note
from k2jax.train.workdir import check_shared, write_config

NON_FINITE = 3  # exit code
_READ_SECONDS = 1800.0  # between the first host that has read its part of a checkpoint and the last
_STATUS = {0: "finished", NON_FINITE: "stopped on a non-finite value", 143: "stopped by SIGTERM", 130: "interrupted"}


class NonFiniteError(Exception):
    """A step met a value that is not finite and was not applied; a Run that is left with it saves and ends well."""

    def __init__(self, metrics: StepMetrics):
        super().__init__("a non-finite loss, gradient or logit")
        self.metrics = metrics


class Run:
    """One process's part of a run.

    Example:
        >>> with Run(program, workdir, {"corpus": fingerprint}) as run:
        ...     for step in run.steps():
        ...         run.update([next(batches)])
        ...         run.log(step, {})
        ...         run.save_when_due(step)
        >>> run.exit_code

    Args:
        program: mesh, loss and compiled functions.
        workdir: an open workdir, see ``train.workdir``.
        identity: fingerprints of what must not change between starts, by the name that a message gives it.
        config: of the whole run, where ``program`` is that of one of its phases.

    Attributes:
        phase: name of the phase that is being done; empty in a run without.
        state: the training state on the devices.
        step: the step that is being computed, or the last one.
        done: the last step that was completed.
        start: the step that was restored; 0 in an empty workdir.
        extra: what the loop keeps beside the state: of the restored checkpoint, or None, and then as it last gave it.
        best: the step that the loop marked as its best; its checkpoint stays. None for none.
        changes: what was changed in the configuration since the run was begun.
        recorder: what spans steps.
        exit_code: 0, ``NON_FINITE``, 143 after SIGTERM or 130 after an interrupt.

    Raises:
        UserError: the newest checkpoint cannot be read, or belongs to another identity.
    """

    def __init__(self, program: Program, workdir: Path, identity: Mapping[str, str], config: Config | None = None):
        self.workdir, self.config, self.phase = workdir, config or program.config, ""
        self._identity = dict(identity)
        self._take(program)
        updates, phases = total_updates(self.config), self.config.phases
        self._learning_rate = optim.learning_rate(self.config.optimizer, updates, phases)
        self._checkpoints = Checkpoints(workdir, self.config.checkpoint.keep)
        self._ends = {phase.last for phase in run_phases(self.config)}
        self.exit_code, self._stop_signal, self.extra = 0, None, None
        self._ended = ""  # by the loop, and why
        self._has_begun = False
        newest = self._newest()
        self.state, meta = self._initial_state() if newest is None else self._restore(newest)
        self.step = self.start = self.done = newest or 0
        self._record: dict[str, Any] = {}
        self._updates = 0  # in the step that is being computed
        self.best: int | None = meta.get("best")
        self._checkpoints.keep_step(self.best)
        processes.report_position(lambda: (self.step, self._newest()))
        known, new = changes_of(meta, self.start, self.config)
        self.changes = known + new
        for change in new:
            say(str(change))
        self.recorder = Recorder(program.config, meta)
        self._open = contextlib.ExitStack()
        if processes.is_first():
            write_config(workdir, self.config)  # only now: nothing of the config was refused
        processes.barrier("begin", _READ_SECONDS)
        check_shared(workdir)

    @property
    def status(self) -> str:
        """How the run ended, in words for the report."""
        return self._ended if self._ended and not self.exit_code else _STATUS[self.exit_code]

    @property
    def has_ended(self) -> bool:
        """Whether there are no steps to do any more: the run was asked to stop, or ended by its loop."""
        return bool(self.exit_code or self._ended)

    @property
    def stop_asked(self) -> bool:
        """Whether this process, or another one of the run, was asked to stop."""
        return self._stop_signal is not None or processes.stop_asked()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, *trace: object) -> bool:
        """Commits saves that were started and releases threads; a non-finite step, or a stop, becomes an exit code."""
        try:
            if isinstance(error, NonFiniteError):
                self._stop_unhealthy(error.metrics)
                error = None
            elif isinstance(error, StopAskedError):
                self._stop_waiting()
                error = None
        finally:
            self._open.close()
            if error is None or processes.count() == 1:  # a save waits for all processes, of which one may be gone
                self._checkpoints.close()
        return kind is not None and error is None

    def begin(self) -> bool:
        """Opens the logs and listens to signals, once; ``steps`` does it where the loop has not.

        Returns:
            Whether there are steps to do.
        """
        if self._has_begun or self._ended:
            return self._has_begun
        if self.start >= self.config.train.steps:
            say(f"already at step {self.start:,}; raise config.train.steps to train on")
            self.end(self.status)
            return False
        self._start_logs()
        self.state = jax.block_until_ready(self.state)
        self._has_begun = True
        return True

    def wait_saved(self) -> None:
        """Returns when every save that was started is committed."""
        self._checkpoints.wait()

    def enter(self, phase: str, program: Program) -> None:
        """Goes on in a phase, of which the step that was done last is the one before its first.

        The state stays where it lies; on another mesh it is read from the checkpoint of that step.

        Args:
            phase: its name.
            program: of its configuration.
        """
        before, self.phase = self.program, phase
        if program is before:
            return
        self._take(program)
        self.recorder.enter(program.config)
        if program.config.parallel != before.config.parallel:
            self.wait_saved()
            self.state = self._read(self.done, self._checkpoints.meta(self.done))

    def steps(self, last: int | None = None) -> Iterator[int]:
        """Numbers of the steps to do; ends after the last one, or when the run was asked to stop and has saved.

        Args:
            last: of the phase; None is that of the run.
        """
        if self._ended or not self.begin():
            return
        for step in range(self.done + 1, (last or self.config.train.steps) + 1):
            self._began, self.step, self._updates, self._record = time.perf_counter(), step, 0, {}
            yield step
            if self.has_ended:
                return

    def end(self, reason: str) -> None:
        """Ends the run well before its last step: the step at hand is the last one, and is saved.

        Args:
            reason: how the run ended, in words for the report.
        """
        self._ended = reason

    def update(self, parts: Sequence[PackedBatch]) -> StepMetrics:
        """Does one optimizer step, and may be called several times in a step of reinforcement learning.

        Args:
            parts: this process's rows ``[B, S]`` of the batch, NumPy arrays: one batch, and in reinforcement learning
                any number of batches of one shape, whose gradients add up.

        Returns:
            The update's metrics, on the host.

        Raises:
            UserError: the batch has nothing that a term of the loss counts, or tokens outside the vocabulary.
            NonFiniteError: the update was not applied. It is meant for the Run's ``with`` statement.
        """
        check_targets(parts, self.program.loss)
        for part in parts:
            check_tokens(part, self.config.model.vocab, self.step)
        if not self._updates:
            self._trace.before(self.step)
        self.state, on_device = self.program.update(self.state, [self._batch_sharding.put(part) for part in parts])
        metrics = jax.device_get(on_device)
        if not metrics.healthy:
            raise NonFiniteError(metrics)
        self._updates += 1
        now = time.perf_counter()
        rate = float(self._learning_rate(int(self.state.step) - 1))
        self._record = self.recorder.values(metrics, rate, now - self._began)
        self._began = now
        return metrics

    def evaluate(self, batch: PackedBatch) -> tuple[dict[str, float], dict[str, float]]:
        """Sums of the loss's terms over rows ``[B, S]``, NumPy arrays, and their denominators."""
        check_tokens(batch, self.config.model.vocab, self.step)
        sums, denominators = jax.device_get(self.program.evaluate(self.state.params, self._batch_sharding.put(batch)))
        return jax.tree.map(float, sums.terms), jax.tree.map(float, denominators)

    def log(self, step: int, record: Mapping[str, Any]) -> None:
        """Shows a step and writes its line of ``metrics.jsonl``: what ``update`` measured, and ``record``."""
        self._trace.after(step)
        self.done = step
        record = {**self._record, **({"phase": self.phase} if self.phase else {}), **record}
        if self._metrics and (step % self.config.log.every == 0 or step == self.config.train.steps):
            self._metrics.write(step, record)
        self._progress.update(step, record)
        runtime.resume_collection()  # everything is compiled
        if warning := self.recorder.balance_warning():
            self.note(warning)

    def note(self, text: str) -> None:
        """Prints a line beside the progress bar, on the first process."""
        self._progress.note(text)

    def save_when_due(self, step: int, extra: Any = None, best: bool = False) -> None:
        """Saves at the checkpoint interval, the last step of a phase, a new best step, and where the run is to stop.

        Args:
            step: the step that was done.
            extra: see ``Checkpoints.save``.
            best: whether the step is the best so far; its checkpoint stays until another one is.
        """
        self.extra = extra
        if best:
            self.best = step
            self._checkpoints.keep_step(step)
        if processes.stop_requested(step):
            self._stop_signal = signal.SIGTERM
        due = step % self.config.checkpoint.every == 0 or step in self._ends
        if due or best or self._ended or self._stop_signal:
            self._save(step, extra)
        if self._stop_signal:
            self.note(f"stopping at step {step:,} as asked; the checkpoint is being saved")
            self.exit_code = STOP_CODES[self._stop_signal]

    def _initial_state(self) -> tuple[TrainState, dict]:
        state = self.program.init()
        if self.config.init_from:
            params, origin = pretrained_params(self.config.init_from, self.program.layout, state.params)
            say(f"parameters from {origin}")
            state = state.replace(params=params)
        if self.config.init_tower_from:
            tower, origin = pretrained_tower(self.config.init_tower_from, self.program.layout)
            say(f"the tower from {origin}")
            state = state.replace(params={**state.params, VISION: {**state.params[VISION], **tower}})
        return state, {}

    def _restore(self, step: int) -> tuple[TrainState, dict]:
        meta = self._checkpoints.meta(step)
        check_config(meta, self.config, f"{self.workdir} holds another run")
        for name, fingerprint in self._identity.items():
            # Checkpoints of format 2 do not name the tokenizer apart from the corpus.
            if meta.get("identity", {}).get(name, fingerprint) != fingerprint:
                raise UserError(
                    f"the {name} changed since {self.workdir} was begun; put the old files back, or start in a new "
                    "--workdir"
                )
        self.extra = self._checkpoints.extra(step)
        state = self._read(step, meta)
        say(f"resumed from step {step:,}")
        if leaves := non_finite_leaves(state):
            raise damaged(self._folder_of(step), ValueError(f"{some_of(leaves)} is not finite"))
        return state, meta

    def _read(self, step: int, meta: Mapping[str, Any]) -> TrainState:
        params, opt_state = self._checkpoints.restore(step, *self._checkpoint_layout.abstract)
        processes.barrier("restored", _READ_SECONDS)
        params, opt_state = self._checkpoint_layout.load(params, opt_state)
        put = lambda x: jax.make_array_from_callback((), self.program.shardings.step, x.__getitem__)  # noqa: E731
        updates = meta.get("updates", step)
        return TrainState(put(np.int32(updates)), params, opt_state, put(np.bool_(True)))

    def _take(self, program: Program) -> None:
        self.program = program
        self._batch_sharding, self._checkpoint_layout = program.batch_sharding(), program.checkpoint_layout()

    def _newest(self) -> int | None:
        return max(self._checkpoints.steps(), default=None)

    def _folder_of(self, step: int) -> Path:
        return self._checkpoints.folder / str(step)

    def _start_logs(self) -> None:
        train, first = self.config.train, processes.is_first()
        if processes.count() == 1:
            self._open.enter_context(stop_on_signal(self._ask_to_stop))
        else:
            self._open.enter_context(processes.interrupt_terminates())
        log = self.config.log
        wandb = WandbProject(log.wandb, flat_keys(self.config)) if log.wandb else None
        self._metrics = first and self._open.enter_context(
            MetricsLog(self.workdir, resume_step=self.start, tensorboard=log.tensorboard, wandb=wandb)
        )
        if self._metrics:
            self._say_about_the_log(self._metrics)
        console = None if first else Console(quiet=True)
        work = run_work(self.config)
        self._progress = self._open.enter_context(Progress(train.steps, self.start, console, work=work))
        traced = train.profile_steps if first else ()
        self._trace = self._open.enter_context(StepTrace(self.workdir / "profile", traced))

    def _say_about_the_log(self, metrics: MetricsLog) -> None:
        for place in metrics.places:
            say(place)
        if metrics.damaged:
            say(f"{metrics.damaged} damaged lines of {self.workdir / FILE} were set aside in {DAMAGED}")
        expected = self.start - self.start % self.config.log.every
        if metrics.last_step < expected:
            say(f"{self.workdir / FILE} ends at step {metrics.last_step:,}, the run at {expected:,}: lines were lost")

    def _ask_to_stop(self, number: int) -> None:
        self._stop_signal = number

    def _save(self, step: int, extra: Any = None) -> None:
        meta = {**self.recorder.meta(), "identity": self._identity, "config": fixed_keys(self.config, step)}
        meta |= {"updates": int(self.state.step), "settings": settings(self.config)}
        meta |= {"changes": [list(change) for change in self.changes]}
        if self.best is not None:
            meta["best"] = self.best
        params, opt_state = self._checkpoint_layout.save(self.state.params, self.state.opt_state)
        self._checkpoints.save(step, params, opt_state, meta, extra)

    def _stop_waiting(self) -> None:
        """Saves the last step that was done, unless the state lies behind it already: the one at hand is given up."""
        self._checkpoints.wait()  # for the one that may be under way
        is_ahead, newest = self.step > self.done and self._updates, self._newest()
        if self.done > self.start and not is_ahead and self.done != newest:
            self._save(newest := self.done, self.extra)
        self.exit_code = STOP_CODES[self._stop_signal or signal.SIGTERM]
        again = "from the start" if newest is None else f"from step {newest:,}"
        self.note(f"stopped as asked while step {self.step:,} waited; the run goes on {again}")

    def _stop_unhealthy(self, metrics: StepMetrics) -> None:
        """Saves the state of the step before, if it is finite: the step refused to apply itself."""
        self._checkpoints.wait()  # for the one that may be under way
        steps, leaves = self._checkpoints.steps(), non_finite_leaves(self.state)
        self.exit_code = NON_FINITE
        if not leaves and not self._updates and self.done > self.start and self.done not in steps:
            self._save(self.done, self.extra)
        position = {"updates": self._updates, "good": self.done, "start": self.start, "steps": steps}
        self.note(unhealthy_note(self.step, metrics, leaves, folder=self._folder_of(self.done), **position))


def say(text: str) -> None:
    """Prints a line, on the first process alone."""
    if processes.is_first():
        print(text)
