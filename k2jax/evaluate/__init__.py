"""Evaluation of models on tasks: suites of responses and what they say with which certainty.

``pass_at_k`` estimates success with intervals; ``pictures`` asks a checkpoint about pictures, which ``picture_scores``
judges.
"""
