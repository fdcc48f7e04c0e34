"""Pretraining (and supervised fine-tuning) of one experiment in one workdir."""

from k2jax.train.loop import train

__all__ = ["train"]
