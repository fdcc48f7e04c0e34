"""Pretraining (and supervised fine-tuning) of one experiment in one workdir.

In reading order: ``loop`` (pretraining and SFT on a screen), ``run`` (one run in one workdir), ``step`` and ``program``
(an optimizer step, and what is compiled for a mesh), ``state``, ``corpus``, ``validation`` and ``sample``, ``record``
(metrics of a step), ``workdir``, ``history`` and ``init_from`` (what a run starts from). Beside these: ``patience``,
``signals``, ``trace``, ``report``, ``ending`` (the last line), ``command``.
"""

from k2jax.train.loop import train

__all__ = ["train"]
