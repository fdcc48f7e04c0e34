"""Tokenised corpora, packed into rows and mixed: ``build`` makes all that training reads."""

from k2jax.data.build import Data, build
from k2jax.data.loader import DataLoader, HeldOut
from k2jax.data.packing import RowSource, bits_per_byte

__all__ = ["Data", "DataLoader", "HeldOut", "RowSource", "bits_per_byte", "build"]
