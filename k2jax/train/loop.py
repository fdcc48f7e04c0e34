"""The training loop: prepare or resume, step, validate, save, report.

The state of a run is (checkpoint, step): data order is a function of the step, randomness a function of the seed, so a
run killed at any moment and started again repeats the same losses bit for bit, and on other numbers of processes or
another mesh the same but for rounding. With several processes all of them run this loop; the first one alone prints and
writes, checkpoints apart, to which each adds what lies on its devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from pathlib import Path
import signal
import time
from typing import Any

import jax
import numpy as np
from rich.console import Console

from k2jax import optim, processes, runtime
from k2jax.checkpoint import Checkpoints
from k2jax.config.build import to_json
from k2jax.config.schema import Config
from k2jax.convert.loading import tokenizer_folder, tokenizer_of
from k2jax.data import Data, build
from k2jax.errors import UserError
from k2jax.report.metrics import MetricsLog
from k2jax.report.progress import Progress
from k2jax.report.samples import write_sample
from k2jax.train.init_from import pretrained_params
from k2jax.train.program import Program
from k2jax.train.record import Recorder
from k2jax.train.report import print_start, write_results
from k2jax.train.sample import make_sampler, sample_texts
from k2jax.train.state import TrainState
from k2jax.train.step import StepMetrics
from k2jax.train.trace import StepTrace
from k2jax.train.workdir import check_equal, check_shared, locked, open_workdir, write_config

NON_FINITE = 3  # exit code
_READ_SECONDS = 1800.0  # between the first host that has read its part of a checkpoint and the last
_SEEN_SECONDS = 60.0  # until a shared disk shows to one host what another one has written
_STOP_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


def train(config: Config, workdir: str | Path) -> int:
    """Trains to ``config.train.steps``, resuming from the workdir's newest checkpoint.

    Args:
        config: the experiment.
        workdir: the run's folder; see the package's documentation for what it holds.

    Returns:
        The exit code of ``python -m k2jax.train``.

    Raises:
        UserError: for a mistake in the config, the data or the workdir.
    """
    if config.stage != "pretrain":
        raise UserError(f"config.stage is {config.stage!r}, which has no command yet; k2jax.train runs 'pretrain'")
    runtime.check_kernels(config.model)
    runtime.check_exchange(config)
    check_equal(processes.of_first("config", to_json(config)), config)
    path = open_workdir(workdir, config)
    with locked(path) if processes.first() else contextlib.nullcontext(), Run(config, path) as run:
        return run.run()


class Run:
    """One process's part of one run: everything that lives from the first step to the last."""

    def __init__(self, config: Config, workdir: Path):
        self.config, self.workdir = config, workdir
        train = config.train
        self.program = Program(config)
        self.placement = self.program.placement()
        self.data = shared_data(config, self.placement.rows)
        if self.data.tokenizer.vocab_size > config.model.vocab:
            raise UserError(
                f"the tokenizer has {self.data.tokenizer.vocab_size} tokens, config.model.vocab only "
                f"{config.model.vocab}; raise it"
            )
        processes.barrier("data", None)
        if processes.first():
            self.data.tokenizer.save(workdir / "tokenizer")
        self.learning_rate = optim.learning_rate(config.optimizer, train.steps)
        self.checkpoints = Checkpoints(workdir, config.checkpoint.keep)
        self.saved_form = self.program.saved_form()
        self.state, meta = self._initial_state()
        self.step = self.start = int(self.state.step)
        processes.report_position(lambda: (self.step, self.checkpoints.newest()))
        self.recorder = Recorder(config, meta)
        self.sampler = jax.jit(make_sampler(config)) if self.program.mesh.size == 1 else None
        self.stop_signal: int | None = None
        if processes.first():
            write_config(workdir, config)  # only now: nothing of the config was refused
        processes.barrier("begin", _READ_SECONDS)
        check_shared(workdir)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        """Commits saves that were started and releases threads."""
        if kind is None or processes.count() == 1:  # a save waits for all processes, of which one may be gone
            self.checkpoints.close()

    def _initial_state(self) -> tuple[TrainState, dict]:
        steps = self.checkpoints.steps()
        if steps:
            return self._restore(steps[-1])
        state = self.program.init()
        if self.config.init_from:
            self._check_tokenizer(self.config.init_from)
            params, origin = pretrained_params(self.config.init_from, self.program.layout)
            _say(f"parameters from {origin}")
            state = state.replace(params=params)
        return state, {}

    def _check_tokenizer(self, init_from: str) -> None:
        """Embeddings mean nothing under another tokenizer of the same size."""
        if tokenizer_of(init_from).fingerprint != self.data.tokenizer.fingerprint:
            raise UserError(
                f"init_from {init_from} was trained with another tokenizer; set config.data.tokenizer.kind to 'file' "
                f"and config.data.tokenizer.path to {tokenizer_folder(init_from)}"
            )

    def _restore(self, step: int) -> tuple[TrainState, dict]:
        meta = self.checkpoints.meta(step)
        if meta["data"] != self.data.fingerprint:
            raise UserError(
                f"the corpus or the tokenizer changed since {self.workdir} was begun; put the old files back, or "
                "start in a new --workdir"
            )
        params, opt_state = self.checkpoints.restore(step, *self.saved_form.abstract)
        processes.barrier("restored", _READ_SECONDS)
        _say(f"resumed from step {step:,}")
        params, opt_state = self.saved_form.to_rest(params, opt_state)
        put = lambda x: jax.make_array_from_callback((), self.program.shardings.step, x.__getitem__)  # noqa: E731
        return TrainState(put(np.int32(step)), params, opt_state, put(np.bool_(True))), meta

    def run(self) -> int:
        """Steps to the end, a signal or a non-finite value; returns the exit code."""
        if processes.first():
            print_start(self.config, self.data, self.start)
        if not self.sampler:
            axes = " x ".join(f"{name} {size}" for name, size in self.program.mesh.shape.items())
            many = f" on {processes.count()} processes" if processes.count() > 1 else ""
            _say(f"mesh: {axes}{many}; text samples are drawn on one device only: none in this run")
        if self.start >= self.config.train.steps:
            _say(f"already at step {self.start:,}; raise config.train.steps to train on")
            self._write_results(self.start, _status(0))  # it may have died before this
            return 0
        progress = Progress(self.config.train.steps, self.start, None if processes.first() else Console(quiet=True))
        trace = StepTrace(self.workdir / "profile", self.config.train.profile_steps if processes.first() else ())
        signals = _signals(self) if processes.count() == 1 else processes.interrupt_terminates()
        with signals, self._metrics() as self.metrics, progress as self.progress, trace as self.trace:
            code = self._steps()
        self.checkpoints.wait()
        self._write_results(int(self.state.step), _status(code))
        return code

    def _metrics(self) -> contextlib.AbstractContextManager[MetricsLog | None]:
        if not processes.first():
            return contextlib.nullcontext()
        return MetricsLog(self.workdir, resume_step=self.start, tensorboard=self.config.log.tensorboard)

    def _write_results(self, step: int, status: str) -> None:
        if processes.first():
            write_results(self.config, self.workdir, self.data, step, status)

    def _steps(self) -> int:
        config, last = self.config, self.config.train.steps
        batches = self._batches()
        self.state = jax.block_until_ready(self.state)
        for step in range(self.start + 1, last + 1):
            began, self.step = time.perf_counter(), step
            self.trace.before(step)
            self.state, on_device = self.program.step(self.state, self.placement.put(next(batches)))
            result = jax.device_get(on_device)
            self.trace.after(step)
            if not result.healthy:
                return self._stop_unhealthy(step, result)
            record = self._record(step, result, time.perf_counter() - began)
            if step % config.eval.every == 0 or step == last:
                record |= self._validate(step, final=step == last)
            if self.metrics and (step % config.log.every == 0 or step == last):
                self.metrics.write(step, record)
            self.progress.update(step, record)
            if processes.asked_to_stop(step):
                self.stop_signal = signal.SIGTERM
            if step % config.checkpoint.every == 0 or step == last or self.stop_signal:
                self._save(step)
            if self.stop_signal:
                self.progress.note(f"stopping at step {step:,} as asked; the checkpoint is being saved")
                return _STOP_CODES[self.stop_signal]
            if step % config.log.plots_every == 0 and step != last:
                self._write_results(step, "running")
        return 0

    def _batches(self) -> Iterator[Any]:
        for batch in self.data.loader.batches(self.start):
            # One of several processes does not see the whole batch; an empty one shows as a loss that is not finite.
            if processes.count() == 1 and not batch.weights.sum() > 0:
                raise UserError("a batch holds no target token; check the corpus and config.data.sequence_length")
            yield batch

    def _record(self, step: int, result: StepMetrics, seconds: float) -> dict:
        return self.recorder.values(step, result, float(self.learning_rate(step - 1)), seconds)

    def _validate(self, step: int, final: bool) -> dict:
        rows = self.config.eval.final_rows if final else self.config.eval.rows
        nll = targets = 0.0
        for batch in self.data.held_out.batches(self.config.train.batch_size, rows):
            part = jax.device_get(self.program.evaluate(self.state.params, self.placement.put(batch)))
            nll, targets = nll + float(part[0]), targets + float(part[1])
        if not targets:
            return {}
        bits = self.data.held_out.bits_per_byte(nll, targets)
        self.progress.note(f"step {step:,}: held-out loss {nll / targets:.4f}, {bits:.4f} bits per byte")
        if self.sampler and self.config.eval.sample_tokens and self.config.eval.prompts:
            for prompt, text in sample_texts(self.sampler, self.state.params, self.data.tokenizer, self.config, step):
                write_sample(self.workdir, step, prompt, text)
        return {"val_loss": nll / targets, "val_bits_per_byte": bits}

    def _save(self, step: int) -> None:
        meta = {**self.recorder.meta(), "data": self.data.fingerprint}
        params, opt_state = self.saved_form.from_rest(self.state.params, self.state.opt_state)
        self.checkpoints.save(step, params, opt_state, meta)

    def _stop_unhealthy(self, step: int, result: StepMetrics) -> int:
        """The state is still that of the step before: the step refused to apply itself. It is saved and named."""
        good = int(self.state.step)
        if good > self.start and good not in self.checkpoints.steps():
            self._save(good)
        logits = np.asarray(result.stats.max_logit)
        where = [f"layer {layer} head {head}" for layer, head in np.argwhere(~(logits < np.inf))[:3]]
        self.progress.note(
            f"stopped: step {step:,} is not finite (loss {float(result.loss)}, gradient norm {float(result.grad_norm)}"
            + (f", max logit in {', '.join(where)}" if where else "")
            + f"); the last good step is {good:,} and no weight of step {step:,} was written. "
            "Lower config.optimizer.learning_rate or config.optimizer.grad_clip and run again."
        )
        return NON_FINITE


def shared_data(config: Config, rows: Sequence[int]) -> Data:
    """What this process reads of the data: process 0 builds what is missing, the others then find it.

    They wait for as long as process 0 lives: a large corpus takes hours.
    """
    if not processes.first():
        processes.barrier("built", None)
    data = build(
        config.data,
        batch_size=config.train.batch_size,
        seed=config.train.seed,
        steps=config.train.steps,
        part=rows,
        builder=processes.first(),
        log=_say,
        wait_seconds=_SEEN_SECONDS,
    )
    if processes.first():
        processes.barrier("built", None)
    return data


def _say(text: str) -> None:
    if processes.first():
        print(text)


def _status(code: int) -> str:
    names = {0: "finished", NON_FINITE: "stopped on a non-finite value", 143: "stopped by SIGTERM", 130: "interrupted"}
    return names[code]


@contextlib.contextmanager
def _signals(run: Run):
    """SIGTERM and Ctrl-C ask the loop to save and stop after the current step; a second one is not caught."""

    def ask(number: int, frame: Any) -> None:
        run.stop_signal = number
        signal.signal(number, old[number])

    try:
        old = {number: signal.signal(number, ask) for number in _STOP_CODES}
    except ValueError:  # not in the main thread, as in some notebooks: signals stay as they are
        yield
        return
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
