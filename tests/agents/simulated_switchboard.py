"""A module of simulated APIs that imports another class, which records may not name through it."""

from code import InteractiveInterpreter

__all__ = ["InteractiveInterpreter"]
