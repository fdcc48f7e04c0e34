"""The stages of rephrasing."""

from __future__ import annotations

from k2jax.synthesize.rephrase.source_texts import source_documents
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import Record, SynthesisStage

_HERE = "k2jax.synthesize.rephrase"


def rephrase_records(config: SynthesisConfig) -> list[Record]:
    """The documents that are rephrased."""
    return source_documents(config.rephrase, config.seed)


def rephrase_stages(config: SynthesisConfig) -> list[SynthesisStage]:
    """The stages in order."""
    sizes = config.rephrase
    writing = {"chunk_words": sizes.chunk_words, "context_words": sizes.context_words}
    return [
        SynthesisStage(name="planned", maker=f"{_HERE}.chunkwise:planned", options={"rephrasings": sizes.rephrasings}),
        SynthesisStage(name="rephrased", maker=f"{_HERE}.chunkwise:rephrased", options=writing, roles=("writer",)),
        SynthesisStage(name="judged", maker=f"{_HERE}.fidelity_judge:judged", roles=("judge",)),
        SynthesisStage(
            name="distinct",
            maker=f"{_HERE}.fidelity_judge:distinct_texts",
            options={"near": sizes.near},
            is_whole=True,
        ),
    ]
