"""How well a checkpoint predicts text that a study holds out."""

from __future__ import annotations

from pathlib import Path

from k2jax.config import Config
from k2jax.convert.loading import from_pretrained, tokenizer_of
from k2jax.data import prepare_data
from k2jax.train.corpus import held_out_batches
from k2jax.train.program import Program


def text_loss(config: Config, checkpoint: Path) -> float:
    """Mean negative log-likelihood of the held-out documents of a configuration's data [nats per token].

    Args:
        config: names the data, the share of it that is held out, and the batches.
        checkpoint: a workdir or a folder of weights, with its tokenizer.

    Raises:
        UserError: as ``from_pretrained`` and ``prepare_data``.
    """
    rows, steps = config.train.batch_size, config.train.steps
    data = prepare_data(config.data, batch_size=rows, seed=0, steps=steps, tokenizer=tokenizer_of(checkpoint))
    program, (_, params) = Program(config), from_pretrained(checkpoint)
    nll = targets = 0.0
    for batch in held_out_batches(config, data, final=True):
        sums, denominators = program.evaluate(params, program.batch_sharding().put(batch))
        nll, targets = nll + float(sums.terms["nll"]), targets + float(denominators["nll"])
    return nll / targets
