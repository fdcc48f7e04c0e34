"""Ahead-of-time analysis: programs compiled for a TPU topology, their costs, and estimates of layouts.

In reading order: ``compiling`` (from a config to a compiled program), ``training``, ``serving``, ``weight_sync`` and
``kernels`` with ``kernel_cases`` (what is compiled), ``topology`` (devices without a TPU), ``hlo`` (what a program
sends), ``cost`` (what it takes, by arithmetic), ``report`` (tables).
"""
