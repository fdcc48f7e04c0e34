"""Benchmarks: ratios against named baselines, measured interleaved in one process."""
