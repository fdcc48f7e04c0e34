"""Synthesis of data that agents learn from (Kimi K2, sections 2.2 and 3.1.1). It imports no jax.

A pipeline is a list of stages from records to records. In reading order: ``stages`` (what a stage is), ``questions``
(what models are asked), ``asking`` (the answers of one record, logged and replayed), ``pipeline`` (the command's run:
what is done is kept by its content), ``stage_pool`` and ``record_worker`` (workers of the rollout manager), ``funnel``
and ``samples_page`` (what is shown), ``settings`` (the config). ``tool_use`` and ``rephrase`` are
pipelines.
"""
