"""Benchmarks: ratios to named baselines, measured in interleaved rounds in one process."""
