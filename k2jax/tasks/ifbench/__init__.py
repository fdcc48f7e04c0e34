"""IFBench: constraints that are new to a model."""
