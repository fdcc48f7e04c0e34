"""The critic: a model compares answers in pairs by rubrics, and is itself trained where the better answer is known.

Self-critique rubric reward and closed-loop refinement (Kimi K2, section 3.2.2), and generative reward models over any
client (Kimi K2.5, section 4). Nothing here imports jax; ``k2jax.rl.methods.critic`` brings it into the loop.
"""
