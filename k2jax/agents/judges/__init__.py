"""The critic: a model compares answers in pairs by rubrics, and is itself trained where the better answer is known.

Self-critique rubric reward and closed-loop refinement (Kimi K2, section 3.2.2), and generative reward models over any
client (Kimi K2.5, section 4). Nothing here imports jax; ``k2jax.rl.methods.critic`` brings it into the loop.

In reading order: ``rubrics`` (and the files ``*.yaml``), ``judge_formats`` (what a judge reads and answers), ``judge``
(asks a model), ``pairwise`` (rewards of a tournament), ``hack_check`` (answers that claim what does not hold),
``refinement`` (verdicts as tasks), ``verdict_metrics``.
"""
