"""Evaluation of models on tasks: suites of responses and what they say with which certainty.

In reading order: ``suite`` (what is asked, as data), ``answerers`` (who answers), ``suite_run`` (all answers, each on
disk before it counts), ``scores`` over ``statistics`` and ``pass_at_k`` (what they say, with which certainty),
``votes``, ``evaluation`` (suites in a folder), ``models`` (engine or server), ``page`` and ``lm_eval_files``.

``pictures`` asks a checkpoint about pictures, which ``picture_scores`` judges.
"""
