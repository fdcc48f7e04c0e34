"""The verifier of tasks in repositories: base, patch and tests together in a fresh sandbox, a new tree for each run.

Of the agent's patch, tests and what configures them are left out. Every file of tests runs in a process and a tree of
its own, which no code of the agent has touched. Where all listed tests pass, the files run again with ``controls``,
tests that are changed so that they must fail: code that makes the test runner report success makes these pass as well,
and then nothing counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments.repository import LIMITS
from k2jax.agents.errors import VerifierError
from k2jax.agents.sandbox import Sandbox, SandboxSpec
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.tasks.swe.controls import contradictions, controls_of
from k2jax.tasks.swe.runs import files_of, make_tree, run_file
from k2jax.tasks.swe.variants import counts
from k2jax.trajectory import Reward, Trajectory

_SHOWN = 20
"""Names of tests in a reward's ``info``."""


class SWEVerifier(Verifier):
    """1 if all tests of ``fail_to_pass`` and ``pass_to_pass`` pass with the agent's patch, else 0.

    The ``info`` of a reward has ``dropped`` (what of the patch was left out), ``ended`` (files of which tests are
    missing, and why), ``contradicted`` (tests that ended otherwise than they must in a run with controls), and
    ``uncontrolled`` (tests of ``fail_to_pass`` without a control).

    Attributes:
        spec: of its sandboxes.
    """

    def __init__(self):
        self.spec = SandboxSpec(read_only=host_python().read_only, limits=LIMITS)

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the patch that the episode left.

        Raises:
            SandboxError: the sandbox failed.
            VerifierError: base and tests cannot be put together, or the reference patch does not pass its tests.
        """
        outcome = trajectory.metadata.get(OUTCOME, {})
        patch = str(outcome.get("patch", ""))
        if not patch:
            return Reward(0.0, info={"patch": bool(patch), "too_large": bool(outcome.get("too_large"))})
        controls = await controls_of(task, sandbox)
        tree = await make_tree(task, sandbox, patch)
        if not tree.outcome["applied"]:
            return Reward(0.0, info={"patch": True, **tree.outcome})
        passed: set[str] = set()
        info = {
            "patch": True,
            "dropped": tree.outcome["dropped"],
            "ended": {},
            "uncontrolled": controls.uncontrolled[:_SHOWN],
        }
        agents_code_has_run = bool(tree.built)
        for file, tests in files_of(task).items():
            run = await run_file(task, sandbox, tree, file)
            if not run.started and not agents_code_has_run:
                raise VerifierError(run.reason)
            agents_code_has_run = True
            passed |= {test for test in tests if counts(task, controls, test, run.kinds.get(test))}
            if any(test not in run.kinds for test in tests):
                info["ended"][file] = run.reason
        if _all_pass(task, passed) and (names := await contradictions(task, sandbox, tree, controls)):
            return Reward(0.0, _parts(task, set()), {**info, "contradicted": names[:_SHOWN]})
        return Reward(float(_all_pass(task, passed)), _parts(task, passed), info)


def _all_pass(task: Task, passed: set[str]) -> bool:
    return all(test in passed for name in ("fail_to_pass", "pass_to_pass") for test in task.metadata[name])


def _parts(task: Task, passed: set[str]) -> Mapping[str, float]:
    """The fractions of the tests of each list that passed; a list without tests has none."""
    lists = {name: task.metadata[name] for name in ("fail_to_pass", "pass_to_pass")}
    return {name: sum(test in passed for test in tests) / len(tests) for name, tests in lists.items() if tests}
