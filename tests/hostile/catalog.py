"""All attacks, in the order of their rows."""

from tests.hostile import agent_attacks, answer_attacks, data_attacks, git_attacks, sandbox_attacks, server_attacks
from tests.hostile.attack import Attack

MODULES = (git_attacks, sandbox_attacks, agent_attacks, answer_attacks, data_attacks, server_attacks)
ATTACKS: tuple[Attack, ...] = tuple(sorted((one for each in MODULES for one in each.ATTACKS), key=lambda one: one.row))
