"""Rephrasing (Kimi K2, section 2.2) with programs in the place of models: 120 documents, ten rephrasings of each.

Expected: a tenth of the chunks is planted with an infidelity; names, numbers and equations find nearly all, the judge
the rest, and more than nine of ten rephrasings are kept after a second try. For real texts and models set
``config.rephrase.path`` and ``config.models.writer = AskedModelConfig(url=..., name=...)``, and ``judge`` likewise.

    python -m k2jax.synthesize --config=experiments/synthesis/rephrase.py --workdir=runs/rephrase
"""

from k2jax.synthesize.settings import synthesis


def get_config():
    """The synthesis."""
    return synthesis(pipeline="rephrase")
