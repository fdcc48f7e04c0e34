"""What is checked of a batch on the host, before a device takes it as it is."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax import processes
from k2jax.batch import PackedBatch
from k2jax.errors import UserError
from k2jax.losses import Loss


def check_tokens(batch: PackedBatch, vocab: int, step: int) -> None:
    """Rejects tokens outside the vocabulary: a lookup on the device takes any number for some row of the embedding.

    Raises:
        UserError: in one line that names the step.
    """
    lowest, highest = int(batch.tokens.min()), int(batch.tokens.max())
    if lowest < 0 or highest >= vocab:
        wrong = lowest if lowest < 0 else highest
        raise UserError(
            f"a batch of step {step:,} holds the token {wrong}, and config.model.vocab is {vocab}; check the data and "
            "the tokenizer"
        )


def check_targets(parts: Sequence[PackedBatch], loss: Loss) -> None:
    """Rejects a batch that has nothing a term of the loss counts, where this process sees the whole batch.

    With several processes, an empty batch shows as a loss that is not finite.

    Raises:
        UserError: in one line that names the term.
    """
    if processes.count() > 1:
        return
    counts = [loss.denominators(part.targets) for part in parts]
    for term in counts[0]:
        if not sum(count[term] for count in counts) > 0:
            raise UserError(
                f"a batch holds no target for the loss's term {term!r}; check the data and config.data.sequence_length"
            )
