"""Held-out loss and samples of a training run: of documents in pretraining, of answers in fine-tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import jax

from k2jax import processes
from k2jax.data import TrainingData
from k2jax.report.samples import write_sample
from k2jax.text import configured_chat
from k2jax.train.corpus import held_out_batches
from k2jax.train.run import Run, say
from k2jax.train.sample import SamplePrompt, chat_prompts, make_sampler, sample_texts, text_prompts


class Validation:
    """Validates a phase of a run on the held-out documents of its corpus, in rows as long as the phase's."""

    def __init__(self, run: Run, data: TrainingData):
        self._run, self._data, self._config = run, data, run.program.config
        mesh = run.program.mesh
        self._sampler = jax.jit(make_sampler(self._config)) if mesh.size == 1 else None
        self._prompts, self._end = self._prompts_and_end()
        if self._sampler is None:
            axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
            several = f" on {processes.count()} processes" if processes.count() > 1 else ""
            say(f"mesh: {axes}{several}; text samples are drawn on one device only: none in this run")

    def when_due(self, step: int, ends_phase: bool = False) -> dict[str, float]:
        """The record of a validation at its interval and at the last step, of a phase too; otherwise an empty one."""
        final = step == self._config.train.steps
        if not final and not ends_phase and step % self._config.eval.every:
            return {}
        record = self._held_out(step, final and not self._config.train.patience)
        if self._sampler and self._config.eval.sample_tokens and self._prompts:
            self._write_samples(step)
        return record

    def _held_out(self, step: int, final: bool) -> dict[str, float]:
        names = self._data.held_out.names if self._config.eval.by_source else [None]
        sums = {name: self._sums(final, name) for name in names}
        total = sum(sums.values(), Counter())
        if not total["targets"]:
            return {}
        record, words = self._measured(total["nll"], total["targets"])
        self._run.note(f"step {step:,}: held-out loss {words}")
        known = {name: of for name, of in sums.items() if name and of["targets"]}
        return record | {f"val_loss/{name}": of["nll"] / of["targets"] for name, of in known.items()}

    def _sums(self, final: bool, source: str | None) -> Counter[str]:
        """Negative log-likelihood and targets, summed over the rows of a source, or of all."""
        sums: Counter[str] = Counter()
        for batch in held_out_batches(self._config, self._data, final, source):
            terms, denominators = self._run.evaluate(batch)
            sums.update({"nll": terms["nll"], "targets": denominators["nll"]})
        return sums

    def _measured(self, nll: float, targets: float) -> tuple[dict[str, float], str]:
        """The record of a summed negative log-likelihood [nats] over targets, and what to say of it."""
        loss, bits = nll / targets, self._data.held_out.bits_per_byte(nll, targets)
        if bits is None:
            return {"val_loss": loss}, f"{loss:.4f}"
        return {"val_loss": loss, "val_bits_per_byte": bits}, f"{loss:.4f}, {bits:.4f} bits per byte"

    def _prompts_and_end(self) -> tuple[Sequence[SamplePrompt], int]:
        """What samples continue, and the token at which they stop."""
        tokenizer = self._data.tokenizer
        return text_prompts(self._config, self._data.held_out, tokenizer), tokenizer.eos

    def _write_samples(self, step: int) -> None:
        params, tokenizer = self._run.state.params, self._data.tokenizer
        pairs = sample_texts(self._sampler, params, tokenizer, self._prompts, self._config, step, end=self._end)
        for prompt, text in pairs:
            write_sample(self._run.workdir, step, prompt, text)


class ChatValidation(Validation):
    """Validates a run on held-out conversations: loss per token of the assistant, answers to their prompts."""

    def _measured(self, nll: float, targets: float) -> tuple[dict[str, float], str]:
        loss = nll / targets
        return {"val_loss": loss}, f"{loss:.4f} per token of the assistant"

    def _prompts_and_end(self) -> tuple[Sequence[SamplePrompt], int]:
        tokenizer = self._data.tokenizer
        prompts = chat_prompts(self._config, self._data.held_out, tokenizer)
        return prompts, configured_chat(tokenizer, self._config.data.chat_format).end


VALIDATIONS = {"pretrain": Validation, "sft": ChatValidation}
"""How a run is validated, by ``config.stage``."""
