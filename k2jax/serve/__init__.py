"""An OpenAI-compatible HTTP server for an inference engine: ``python -m k2jax.serve``.

In reading order: ``app`` (routes), ``service`` (requests in progress), ``middleware`` and ``metrics``,
``media_readers`` (images of requests), ``engine_process`` (an engine for the workers of a collection), ``run_engine`` (one
that joins a run) and ``engine_part`` (what each of its processes has of it), ``following`` (weights of a run).
"""
