"""Reproductions of the reports' claims: runs the studies of ``experiments/reproduce`` and summarizes their results.

A study is a file with three functions: ``get_config()``, ``runs()`` (overrides of each run, by name) and
``summarize(results)``. One that measures on held-out tasks returns the configurations of these evaluations from
``held_out_configs()``, so that too few tasks are an error before the first run. This package runs and resumes studies;
importing it does not import jax.
"""

from k2jax.reproduce.results import RunResult, Summary, curve, final, points, relative_spread, seconds_at, spread

__all__ = ["RunResult", "Summary", "curve", "final", "points", "relative_spread", "seconds_at", "spread"]
