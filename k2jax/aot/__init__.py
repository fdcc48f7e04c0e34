"""Ahead-of-time analysis: programs compiled for a TPU topology, their costs, and estimates of layouts."""
