"""What algorithms add to the loop of reinforcement learning, one file each.

Reading order: ``base`` has the hooks, and the sum of a run's methods. ``toggle`` is the shortest whole example, ``ptx``
and ``distillation`` bring terms of the loss (with ``teachers`` and ``teacher_table``), ``mcla`` and ``loss_masks`` look
at all updates before the first (``scoring_pass`` gives log-probabilities), ``critic`` (with ``judges``) rewards by
comparison, ``parl`` rewards agents for what their sub-agents do at once (with ``swarm_metrics``), ``held_out``
evaluates, ``role_schedule`` exchanges frozen checkpoints.
A new method is a file with a subclass of ``Method`` and a line in ``METHODS``.
"""

from k2jax.rl.methods.base import Method, Methods, Parts
from k2jax.rl.methods.critic import Critic
from k2jax.rl.methods.distillation import OnPolicyDistillation
from k2jax.rl.methods.held_out import HeldOutEvaluation
from k2jax.rl.methods.loss_masks import LossMasks
from k2jax.rl.methods.mcla import MCLA
from k2jax.rl.methods.parl import PARL
from k2jax.rl.methods.ptx import PTXRows
from k2jax.rl.methods.role_schedule import RoleSchedule
from k2jax.rl.methods.toggle import Toggle

METHODS: tuple[type[Method], ...] = (
    Critic,
    Toggle,
    PARL,
    MCLA,
    OnPolicyDistillation,
    LossMasks,
    PTXRows,
    HeldOutEvaluation,
    RoleSchedule,
)
"""All methods, in the order of their hooks: rows of PTX come behind those that others read, evaluation at the end.

What answers in the next iteration is loaded behind the evaluation.
"""


def open_methods(parts: Parts) -> Methods:
    """The methods that the config of a run has.

    Raises:
        UserError: a mistake in what one of them reads.
    """
    methods = Methods()
    for method in METHODS:
        if method.used(parts.config):
            methods.append(method.open(parts, methods))
    return methods
