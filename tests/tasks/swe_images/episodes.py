"""Episodes on the images of tests, and verdicts on patches."""

import asyncio
import dataclasses
import functools
import json

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import OUTCOME, EnvironmentMaker
from k2jax.agents.rewards import checked_reward
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.sandbox.types import WORK
from k2jax.agents.scaffolds.scripted import called, play, play_actions
from k2jax.errors import InfrastructureError
from k2jax.tasks.swe_images.verifier import SWEImageVerifier
from k2jax.trajectory import Reward, Trajectory
from tests.tasks.swe_images.images import folder_of_images, make_image
from tests.tasks.swe_images.shapes import EVAL_SCRIPT, IMAGES

SRC = "swebench/sweb.eval.src:latest"
SYMPY_IMAGE, TAP_IMAGE, LIVE_IMAGE = "tests/sympy:1", "tests/tap:1", "tests/live:1"


@functools.cache
def row(name):
    """The fields of a row; its image is made once."""
    kind, place, shape, more = IMAGES[name]
    fields = make_image(name, kind, place, shape, **more)
    if name == SRC:
        script = EVAL_SCRIPT.format(base=fields["base_commit"], test_patch=fields["test_patch"])
        fields |= {"eval_script": script, "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"}
    return fields


def tasks_of(folder, *rows, options=()):
    """Tasks of rows."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return load_tasks("swe_images", (f"path={folder}/rows.jsonl", *options), "all")


def episode(task, *commands, scored=True):
    """An episode of an agent that runs commands of a shell, with its reward, and what it was shown."""
    actions = [called("shell", command=command) for command in commands]
    maker = EnvironmentMaker("bubblewrap", images=folder_of_images(), repositories=None)

    async def played():
        trajectory = await play(task, maker.make(task), lambda _, messages: play_actions(actions, messages))
        assert not trajectory.error, trajectory.error
        trajectory.reward = await _score(task, trajectory) if scored else None
        return trajectory

    trajectory = asyncio.run(played())
    return trajectory, [node.message["content"] for node in trajectory.nodes if node.message["role"] == "tool"]


def verdict(task, patch, folder):
    """The reward of a patch, or why there is none."""
    trajectory = Trajectory(task.id, task.domain, (0, 0, 0), status="finished")
    trajectory.metadata[OUTCOME] = {"patch": patch, "too_large": False, "folder": folder}
    try:
        return asyncio.run(_score(task, trajectory))
    except InfrastructureError as error:
        return str(error)


async def _score(task, trajectory):
    """The verdict in a fresh sandbox, as a scorer opens it, without the processes of function verifiers."""
    async with await fresh_sandbox(task) as sandbox:
        return Reward(**checked_reward(await SWEImageVerifier().score(task, trajectory, sandbox)))


async def fresh_sandbox(task):
    """A sandbox of the verifier of a task."""
    spec = SWEImageVerifier.spec
    spec = dataclasses.replace(spec, image=task.image, limits=task.limits.of(spec.limits), workdir=WORK)
    return await make_backend("bubblewrap", images=folder_of_images()).open(spec)
