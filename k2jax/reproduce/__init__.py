"""Reproductions of the reports' claims: runs the studies of ``experiments/reproduce`` and summarizes their results.

A study is a file with a ``STUDY``, see ``Study``. In reading order: ``study_file`` (what a study is), ``study`` (its
runs, one after another, resumed where they stopped), ``results`` and ``seeds`` (what a summary computes), ``figures``;
``micro``, ``turns``, ``scenes``, ``visual`` and ``text_loss`` are what several studies share. Importing it does not
import jax.
"""

from k2jax.reproduce.results import RunResult, Summary, curve, final, points, relative_spread, seconds_at, spread
from k2jax.reproduce.study_file import Study

__all__ = ["RunResult", "Study", "Summary", "curve", "final", "points", "relative_spread", "seconds_at", "spread"]
