"""An OpenAI-compatible HTTP server for an inference engine: ``python -m k2jax.serve``.

In reading order: ``app`` (routes), ``service`` (requests in progress), ``middleware`` and ``metrics``,
``media_readers`` (images of requests), ``engine_process`` (an engine for the workers of a collection), ``following``
(weights of a run), ``engine_part`` and ``run_engine`` (an engine that joins a run, of one process or several).
"""
