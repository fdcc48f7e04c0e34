"""The teachers of a run of distillation: opened, checked, and asked how likely they find what the student sampled."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import hashlib
import json
from typing import Any, NamedTuple

import jax
import numpy as np

from k2jax import runtime
from k2jax.batch import PackedBatch
from k2jax.config import Config, ModelConfig, replace_keys
from k2jax.convert.loading import Opened, open_pretrained, tokenizer_of
from k2jax.errors import UserError
from k2jax.inference.checksum import bit_sum, digest, seed_of
from k2jax.inference.weights import named_leaves
from k2jax.parallel.resharding import from_logical, logical_partition
from k2jax.rl.methods.scoring_pass import ScoringPass
from k2jax.rl.methods.teacher_table import named_checkpoints
from k2jax.rl.sync.offload import on_devices, to_host
from k2jax.text.tokenizer import Tokenizer
from k2jax.train.program import Program
from k2jax.train.run import say


class Teacher(NamedTuple):
    """A teacher between uses.

    Attributes:
        name: in the configuration.
        scoring: the forward pass of its model; teachers of one architecture share it.
        params: its weights as the pass stores them, in the host's memory.
        checksum: of its weights.
    """

    name: str
    scoring: ScoringPass
    params: Any
    checksum: str


class Teachers:
    """Those teachers of a run that are the best in some class of tasks.

    A teacher may have another architecture than the student, not another tokenizer.

    Args:
        config: the experiment.
        program: the student's; teachers compute on its mesh.
        tokenizer: the student's.
        chosen: the name of the teacher of every class of tasks.

    Attributes:
        student: the forward pass of the student, which a teacher of its architecture shares.
        classes: names of the classes of tasks, by their number.
        fingerprint: of who teaches what with which weights.

    Raises:
        UserError: a teacher cannot be read, has another tokenizer, too few tokens, or does not divide over the mesh.
    """

    def __init__(self, config: Config, program: Program, tokenizer: Tokenizer, chosen: dict[str, str]):
        self._config, self._mesh = config, program.mesh
        self._passes: list[tuple[ModelConfig, ScoringPass]] = []
        self.student, self.classes = self._pass_of(config.model), sorted(chosen)
        checkpoints = named_checkpoints(config.rl.distill.teachers)
        self._teachers = [self._open(name, checkpoints[name], tokenizer) for name in sorted(set(chosen.values()))]
        self._classes_of = {
            name: [number for number, kind in enumerate(self.classes) if chosen[kind] == name]
            for name in set(chosen.values())
        }
        checksums = {teacher.name: teacher.checksum for teacher in self._teachers}
        facts = [(kind, chosen[kind], checksums[chosen[kind]]) for kind in self.classes]
        self.fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def score(self, updates: Sequence[Sequence[PackedBatch]]) -> list[np.ndarray]:
        """What the teacher of each sampled token's class says of it, at the temperature of its sampling.

        Args:
            updates: rows ``[S]`` with PolicyTargets of each update, the same ones in every process.

        Returns:
            For each update float32 ``[rows, S]``, log-probabilities [nats]; 0 on tokens that the policy did not sample.
        """
        domains = [np.stack([row.targets.domain for row in rows]) for rows in updates]
        tables = [np.zeros(domain_RS.shape, np.float32) for domain_RS in domains]
        for teacher in self._teachers:
            with on_devices(teacher.params) as params:
                for rows, domain_RS, table_RS in zip(updates, domains, tables, strict=True):
                    own_RS = np.isin(domain_RS, self._classes_of[teacher.name])
                    scores_RS = teacher.scoring.score_rows(params, rows, needed=own_RS.any(1))
                    table_RS[own_RS] = scores_RS[own_RS]
        return tables

    def _pass_of(self, model: ModelConfig) -> ScoringPass:
        """The forward pass of a model, compiled once for all that have it."""
        for known, scoring in self._passes:
            if known == model:
                return scoring
        scoring = ScoringPass(replace_keys(self._config, {"model": model}), self._mesh)
        self._passes.append((model, scoring))
        return scoring

    def _open(self, name: str, checkpoint: str, tokenizer: Tokenizer) -> Teacher:
        opened, student = open_pretrained(checkpoint), self._config.model
        if tokenizer_of(checkpoint).fingerprint != tokenizer.fingerprint:
            raise UserError(f"the teacher {name} ({checkpoint}) has another tokenizer than the run, and other tokens")
        if opened.model.vocab < student.vocab:
            raise UserError(
                f"the teacher {name} ({checkpoint}) knows {opened.model.vocab} tokens, config.model.vocab is "
                f"{student.vocab}; make them equal"
            )
        model = replace_keys(opened.model, {"kernels": student.kernels})
        runtime.check_kernels(model)
        try:
            scoring = self._pass_of(model)
        except UserError as error:
            raise UserError(f"the teacher {name} ({checkpoint}) does not fit the run's devices: {error}") from error
        params, checksum = _read(opened, scoring)
        say(f"teacher {name} from {opened.origin}")
        return Teacher(name, scoring, params, checksum)


def _read(opened: Opened, scoring: ScoringPass) -> tuple[Any, str]:
    """A checkpoint's weights in the host's memory, in their own dtype, as a pass stores them, and their checksum."""
    layout = scoring.layout
    logical = opened.params(layout.shardings(logical_partition(layout)))
    sums = jax.device_get({name: _checksum(leaf, seed_of(name)) for name, leaf in named_leaves(logical)})
    convert = jax.jit(functools.partial(from_logical, layout), out_shardings=layout.shardings(layout.storage))
    return to_host(convert(logical)), digest({name: int(value) for name, value in sums.items()})


_checksum = jax.jit(bit_sum)
