"""Reproductions: small studies of the reports' claims, run from ``experiments/reproduce`` and summed up honestly."""
