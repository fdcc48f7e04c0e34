"""Reproductions of the reports' claims: runs the studies of ``experiments/reproduce`` and summarizes their results.

A study is a file with three functions: ``get_config()``, ``runs()`` (overrides of each run, by name) and
``summarize(results)``. This package runs and resumes them; importing it does not import jax.
"""

from k2jax.reproduce.results import RunResult, Summary, curve, final, points, relative_spread, seconds_at, spread

__all__ = ["RunResult", "Summary", "curve", "final", "points", "relative_spread", "seconds_at", "spread"]
