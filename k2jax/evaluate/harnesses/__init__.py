"""Other projects' harnesses over this project's engine: their tasks, our checkpoints, one kind of report.

In reading order: ``lm_eval_model`` (a checkpoint as a model of lm-eval), ``lm_eval_run`` (its tasks from a folder, and
what came of them as our results), ``inspect_extension`` (a model and a sandbox of inspect-ai). They import lm-eval and
inspect-ai, which no extra installs; nothing else imports them early.
"""
