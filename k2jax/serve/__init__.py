"""An OpenAI-compatible HTTP server for an inference engine: ``python -m k2jax.serve``."""
