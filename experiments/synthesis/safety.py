"""Attack, target and judge in a loop (Kimi K2, section 3.2.1) with programs in the place of models: 100 exact desks.

Expected: the target gives in at about half of the desks within four attacks, and refuses a tenth of the harmless
requests; to every attack that broke it a safe answer is written. For real prompts and models set
``config.safety.path`` and ``config.models.attacker = AskedModelConfig(url=..., name=...)``, and ``target``,
``writer`` and ``judge`` likewise.

    python -m k2jax.synthesize --config=experiments/synthesis/safety.py --workdir=runs/safety
"""

from k2jax.synthesize.settings import synthesis


def get_config():
    """The synthesis."""
    return synthesis(pipeline="safety")
