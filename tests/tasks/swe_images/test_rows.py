"""Rows on images of six shapes: the reference patch earns 1, doing nothing 0; patches that must not help."""

import asyncio
import contextlib
import functools
import io
import json

from absl import flags
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scaffolds.scripted import called, play_actions
from k2jax.agents.scorer import Scorer
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.tasks.oracle_check import define, main, play_all
from tests.tasks.swe_images.images import folder_of_images, make_image
from tests.tasks.swe_images.shapes import EVAL_SCRIPT, IMAGES

SHARED = {}
"""What all tests of this file have together: a maker of environments and a scorer."""


@pytest.fixture(scope="module", autouse=True)
def shared():
    images = folder_of_images()
    SHARED["maker"] = EnvironmentMaker("bubblewrap", images=images, repositories=None)
    with VerifierPool(workers=1, timeout=60.0, retries=0) as pool:
        SHARED["scorer"] = Scorer(pool, backend=make_backend("bubblewrap", images=images))
        yield


@functools.cache
def row(name):
    """The fields of a row; its image is made once."""
    kind, place, shape, more = IMAGES[name]
    fields = make_image(name, kind, place, shape, **more)
    if name == "swebench/sweb.eval.src:latest":
        script = EVAL_SCRIPT.format(base=fields["base_commit"], test_patch=fields["test_patch"])
        fields |= {"eval_script": script, "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"}
    return fields


def tasks_of(folder, *rows):
    """Tasks of rows."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return load_tasks("swe_images", (f"path={folder}/rows.jsonl",), "all")


def played(tasks, policy):
    return asyncio.run(play_all(tasks, policy, SHARED["maker"], SHARED["scorer"], 2))


def rewarded(folder, fields, *commands):
    """The reward of an agent that runs commands of a shell, and what it was shown."""
    actions = [called("shell", command=command) for command in commands]
    [episode] = played(tasks_of(folder, fields), lambda task, messages: play_actions(actions, messages))
    assert episode.reward is not None, episode.error
    return episode.reward, [node.message["content"] for node in episode.nodes if node.message["role"] == "tool"]


def test_the_command_checks_rows_of_all_shapes(tmp_path):
    rows = [row(name) for name in IMAGES]
    rows.append(
        rows[1]
        | {"instance_id": "another", "problem_statement": "Another.", "image_name": "", "image": rows[1]["image_name"]}
    )
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    printed, values = io.StringIO(), flags.FlagValues()
    define(values)
    values(["check", f"--options=path={path}", f"--images={folder_of_images()}", "--split=all"])
    with contextlib.redirect_stdout(printed):
        assert main(values, "swe_images") == 0, printed.getvalue()
    assert f"{len(rows)} of {len(rows)} episodes of the oracle policy earn 1" in printed.getvalue()
    assert f"{len(rows)} of {len(rows)} episodes of the null policy earn 0" in printed.getvalue()
