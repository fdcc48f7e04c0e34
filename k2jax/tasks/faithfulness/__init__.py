"""Faithfulness, sentence by sentence (Kimi K2, section 3.2.1): a judge that is trained here, and tasks that it rewards.

In reading order: ``generated_pairs`` (sources with claims that they support or not), ``evidence`` (what is measured of
a claim against its source), ``sentence_judge`` (the model), ``judge_measures``, ``judge_training`` (the command
``python -m k2jax.env.faithfulness``), ``verifier`` and ``dataset``.
"""
