"""Environments of the package verifiers: their tasks, rubrics and tools."""
