"""Tokenised corpora, packed into rows and mixed; ``prepare_data`` builds all data of a training run."""

from k2jax.data.loader import DataLoader, HeldOut
from k2jax.data.packing import RowSource, bits_per_byte
from k2jax.data.training_data import TrainingData, prepare_data

__all__ = ["DataLoader", "HeldOut", "RowSource", "TrainingData", "bits_per_byte", "prepare_data"]
