"""Evaluation of models on tasks: suites of responses and what they say with which certainty."""
