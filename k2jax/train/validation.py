"""Held-out loss and text samples of a training run."""

from __future__ import annotations

from collections import Counter

import jax

from k2jax import processes
from k2jax.data import TrainingData
from k2jax.report.samples import write_sample
from k2jax.train.corpus import held_out_batches
from k2jax.train.run import Run, say
from k2jax.train.sample import make_sampler, prompts_of, sample_texts


class Validation:
    """Validates a run on the held-out part of its corpus."""

    def __init__(self, run: Run, data: TrainingData):
        self._run, self._data, self._config = run, data, run.config
        mesh = run.program.mesh
        self._sampler = jax.jit(make_sampler(run.config)) if mesh.size == 1 else None
        self._prompts = prompts_of(run.config, data.held_out, data.tokenizer)
        if self._sampler is None:
            axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
            several = f" on {processes.count()} processes" if processes.count() > 1 else ""
            say(f"mesh: {axes}{several}; text samples are drawn on one device only: none in this run")

    def when_due(self, step: int) -> dict[str, float]:
        """The record of a validation at its interval and at the last step; otherwise an empty one."""
        final = step == self._config.train.steps
        if not final and step % self._config.eval.every:
            return {}
        record = self._held_out(step, final)
        if self._sampler and self._config.eval.sample_tokens and self._prompts:
            self._write_samples(step)
        return record

    def _held_out(self, step: int, final: bool) -> dict[str, float]:
        sums: Counter[str] = Counter()
        for batch in held_out_batches(self._config, self._data, final):
            terms, denominators = self._run.evaluate(batch)
            sums.update({"nll": terms["nll"], "targets": denominators["nll"]})
        nll, targets = sums["nll"], sums["targets"]
        if not targets:
            return {}
        bits = self._data.held_out.bits_per_byte(nll, targets)
        self._run.note(f"step {step:,}: held-out loss {nll / targets:.4f}, {bits:.4f} bits per byte")
        return {"val_loss": nll / targets, "val_bits_per_byte": bits}

    def _write_samples(self, step: int) -> None:
        params, tokenizer = self._run.state.params, self._data.tokenizer
        pairs = sample_texts(self._sampler, params, tokenizer, self._prompts, self._config, step)
        for prompt, text in pairs:
            write_sample(self._run.workdir, step, prompt, text)
