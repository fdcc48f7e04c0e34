"""Episodes on the images of tests, and verdicts on patches, with one maker of environments and one scorer."""

import asyncio
import contextlib
import functools
import json

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import OUTCOME, EnvironmentMaker
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scaffolds.scripted import called, play_actions
from k2jax.agents.scorer import Scorer
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.tasks.oracle_check import play_all
from k2jax.trajectory import Trajectory
from tests.tasks.swe_images.images import folder_of_images, make_image
from tests.tasks.swe_images.shapes import EVAL_SCRIPT, IMAGES

SRC = "swebench/sweb.eval.src:latest"
SYMPY_IMAGE, TAP_IMAGE, LIVE_IMAGE = "tests/sympy:1", "tests/tap:1", "tests/live:1"


@contextlib.contextmanager
def shared_scorer():
    """What all tests of a file have together."""
    with VerifierPool(workers=1, timeout=60.0, retries=0) as pool:
        yield Scorer(pool, backend=make_backend("bubblewrap", images=folder_of_images()))


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


def episode(scorer, task, *commands):
    """An episode of an agent that runs commands of a shell, scored, and what it was shown."""
    actions = [called("shell", command=command) for command in commands]
    maker = EnvironmentMaker("bubblewrap", images=folder_of_images(), repositories=None)
    [played] = asyncio.run(play_all([task], lambda _, messages: play_actions(actions, messages), maker, scorer, 1))
    return played, [node.message["content"] for node in played.nodes if node.message["role"] == "tool"]


def verdict(scorer, task, patch, folder):
    """The reward of a patch, or why there is none."""
    trajectory = Trajectory(task.id, task.domain, (0, 0, 0), status="finished")
    trajectory.metadata[OUTCOME] = {"patch": patch, "too_large": False, "folder": folder}
    asyncio.run(scorer.judge(task, trajectory))
    return trajectory.reward or trajectory.error
