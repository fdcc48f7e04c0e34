"""Questions about pictures in a sandbox: truths by SciPy, solutions by cells that are really run, and mistakes."""

import asyncio
import base64
import contextlib
import dataclasses
import io
import json
import re

import numpy as np
from PIL import Image
import pytest
from scipy import ndimage

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import Message, Services
from k2jax.agents.environments.files import FILES, NamedFilesEnvironment
from k2jax.agents.registry import oracles, verifiers
from k2jax.agents.sandbox import SandboxError
from k2jax.agents.scripted import called, play, play_actions, said
from k2jax.config.schema import SourceConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.drawings.canvas import COLOURS
from k2jax.errors import UserError
from k2jax.tasks.pictures.oracle import picture_demonstrations
from k2jax.tasks.pictures.tools import KINDS, PICTURE, kind_of, question_of
from k2jax.tasks.pictures.verifier import TRUTH
from tests.agents.sandbox.backends import backend
from tests.command import run_command
from tests.data.corpora import data_config
from tests.text import kimi

SOLVE = oracles.get("picture_tools")
PLACES = ("side=112", "side=64", "side=140", "height=70")


def played(task, policy=SOLVE):
    """An episode that no verifier has judged."""
    episode = asyncio.run(play(task, NamedFilesEnvironment(Services(lambda: backend("bubblewrap"))), policy))
    assert episode.status == "finished", episode.error
    return episode


def results_of(episode):
    """What the cells of an episode printed."""
    return [node.message["content"] for node in episode.nodes if node.message["role"] == "tool"]


def pixels_of(task):
    """The picture's pixels, int ``[height, width, 3]``."""
    file = base64.b64decode(task.metadata[FILES][PICTURE]["base64"])
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"), int)


def shapes_of(pixels):
    """Colour, name, slices and number of pixels of every shape: connected in four directions, by how full they are."""
    for colour, channels in COLOURS.items():
        labels, _ = ndimage.label((pixels == channels).all(-1))
        for number, place in enumerate(ndimage.find_objects(labels), 1):
            area = int((labels[place] == number).sum())
            full = area / labels[place].size
            yield colour, "square" if full == 1 else "circle" if full > 0.7 else "triangle", place, area


def expected(task):
    """The truth of a task, from its pixels and its question alone."""
    pixels, question, kind = pixels_of(task), question_of(task), kind_of(task)
    height, width, _ = pixels.shape
    words = question.split(" pixels. ", 1)[1]
    colour, shape = (
        re.search(rf"\b({'|'.join(names)})", words) for names in (COLOURS, ("circle", "square", "triangle"))
    )
    if kind == "crop":
        left, top, right, bottom = map(int, re.findall(r"(?:column|row) (\d+)", words))
        return int((pixels[top:bottom, left:right] == COLOURS[colour[1]]).all(-1).sum())
    shapes = list(shapes_of(pixels))
    box = lambda place: [round(1000 * each / side) for each, side in zip(  # noqa: E731
        (place[1].start, place[0].start, place[1].stop, place[0].stop), (width, height) * 2, strict=True)]  # fmt: skip
    if kind == "describe":
        across, down = map(int, re.search(r"grid of (\d) x (\d)", words).groups())
        cell = lambda place: (place[0].start // (height // down), place[1].start // (width // across))  # noqa: E731
        shapes.sort(key=lambda each: cell(each[2]))
        return "".join(f"{each[0]} {each[1]}{box(each[2])}" for each in shapes).replace(", ", ",")
    wanted = [each for each in shapes if each[:2] == (colour[1], shape[1])]
    return {"count": len(wanted), "area": sum(e[3] for e in wanted), "locate": sorted(box(e[2]) for e in wanted)}[kind]


@pytest.mark.parametrize("place", PLACES)
def test_pixels_and_questions_alone_give_the_truth_of_every_kind(place):
    tasks = load_tasks("picture_tools", ("count=60", "seed=3", place))
    assert {kind_of(task) for task in tasks} == set(KINDS)
    for task in tasks:
        truth = task.metadata[TRUTH]
        assert expected(task) == (sorted(truth) if isinstance(truth, list) else truth), question_of(task)


def test_the_teachers_calls_earn_1_on_every_kind_and_the_null_policy_0(check):
    wide = load_tasks("picture_tools", ("count=5", "show=true", "height=70"), split="test")
    tasks = [*load_tasks("picture_tools", ("count=5",)), *wide]
    solved = check(tasks, SOLVE)
    assert {task.domain for task in tasks} == {f"picture_tools/{kind}" for kind in KINDS}
    assert not any("Error" in printed for episode in solved for printed in results_of(episode))


def test_the_prompt_shows_the_picture_of_the_sandbox_or_text_alone():
    shown, hidden = (load_tasks("picture_tools", ("count=10", f"show={show}")) for show in ("true", "false"))
    for with_picture, text in zip(shown, hidden, strict=True):
        [message] = with_picture.instruction
        image, question = message["content"]
        file = with_picture.metadata[FILES][PICTURE]["base64"]
        assert image == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{file}"}}
        assert text.instruction == ({"role": "user", "content": question["text"]},)
        assert dataclasses.replace(with_picture, instruction=text.instruction) == text
        assert file[:40] not in json.dumps(text.instruction)


def test_tasks_depend_on_the_seed_and_splits_have_other_pictures():
    load = lambda *options, split="train": load_tasks("picture_tools", ("count=20", *options), split)  # noqa: E731
    assert load() == load()
    pictures = {
        task.metadata[FILES][PICTURE]["base64"]
        for tasks in (load(), load("seed=1"), load(split="test"))
        for task in tasks
    }
    assert len(pictures) == 60


def test_another_picture_in_the_sandbox_is_another_answer():
    tasks = load_tasks("picture_tools", ("count=3", "kinds=area"))
    for task, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
        exchanged = dataclasses.replace(task, metadata=task.metadata | {FILES: other.metadata[FILES]})
        assert expected(exchanged) != task.metadata[TRUTH]
        assert played(exchanged).answer == str(expected(exchanged))


def test_a_picture_that_a_cell_removes_is_whole_in_the_next_episode():
    [task] = load_tasks("picture_tools", ("count=1",))
    kept = task.to_json()
    code = f"import os\nsize = os.stat({PICTURE!r}).st_size\nos.remove({PICTURE!r})\nsize, os.listdir()"
    size = len(base64.b64decode(task.metadata[FILES][PICTURE]["base64"]))
    for _ in range(2):
        episode = played(task, lambda _, messages: play_actions([called("python", code=code), said("")], messages))
        assert results_of(episode) == [f"({size}, [])"]
    assert task.to_json() == kept


def test_cells_see_the_picture_and_nothing_of_the_truth_and_write_nowhere_else():
    [task] = load_tasks("picture_tools", ("count=1",))
    cells = ("import os\nos.getcwd(), os.listdir()", "open('/usr/x', 'w')", "open('/x', 'w')")
    actions = [*(called("python", code=code) for code in cells), said("")]
    seen, *refused = results_of(played(task, lambda _, messages: play_actions(actions, messages)))
    assert seen == f"('/work', ['{PICTURE}'])"
    assert all("Read-only file system" in error or "Permission denied" in error for error in refused)


MALFORMED = {"count": "many", "area": "[3]", "crop": "3 or 4", "locate": "[1,2,3]", "describe": "x" * 10_001}


def test_malformed_answers_are_worth_nothing_and_say_why():
    for task in load_tasks("picture_tools", ("count=5",)):
        verifier = verifiers.get(task.verifier)
        reward = verifier(task, MALFORMED[kind_of(task)])
        assert (reward.value == 0 and "it " in reward.info["malformed"]) or "shape" in reward.info["malformed"]


def run_cells(messages, task, folder, monkeypatch):
    """What the cells of a conversation print in this process, and what the conversation says that they printed."""
    (folder / PICTURE).write_bytes(base64.b64decode(task.metadata[FILES][PICTURE]["base64"]))
    monkeypatch.chdir(folder)
    names = {}
    for call, result in zip(messages[1:-1:2], messages[2:-1:2], strict=True):
        *lines, last = json.loads(call["tool_calls"][0]["function"]["arguments"])["code"].split("\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            with contextlib.suppress(SyntaxError):
                last = f"print({last})" if not last.startswith((" ", "print")) else last
            exec("\n".join([*lines, last]), names)
        yield printed.getvalue().rstrip("\n"), result["content"]


def test_demonstrations_are_text_and_show_what_the_cells_print(tmp_path, monkeypatch):
    tasks = load_tasks("picture_tools", ("count=5",))
    records = list(picture_demonstrations(tasks, direct=0.0))
    assert len(records) == 5
    for task, record in zip(tasks, records, strict=True):
        messages: list[Message] = record["messages"]
        assert messages[0] == task.instruction[0] and all(isinstance(m["content"], str) for m in messages)
        assert [tool["function"]["name"] for tool in record["tools"]] == ["python"]
        assert len(messages) >= 4
        for printed, shown in run_cells(messages, task, tmp_path, monkeypatch):
            assert printed == shown


def test_only_demonstrations_with_the_right_answer_are_kept_and_a_share_is_direct():
    tasks = load_tasks("picture_tools", ("count=16", "kinds=count+locate"))
    changed = {"visual_count": 99, "visual_boxes": [[0, 0, 1, 1]]}
    wrong = [dataclasses.replace(t, metadata=t.metadata | {TRUTH: changed[t.verifier]}) for t in tasks[:2]]
    kept = [record["messages"][0] for record in picture_demonstrations([*wrong, *tasks[2:4]], direct=0.0)]
    assert kept == [task.instruction[0] for task in tasks[2:4]]
    records = list(picture_demonstrations(tasks, direct=0.8))
    assert len(records) == 16 and 9 <= sum(len(record["messages"]) == 2 for record in records) < 16


def test_a_sandbox_that_fails_ends_the_demonstrations_in_one_line(monkeypatch):
    async def fail(self, task, sandbox):
        raise SandboxError("no room")

    monkeypatch.setattr(NamedFilesEnvironment, "prepare", fail)
    with pytest.raises(UserError, match="'count-train-0' failed: SandboxError: no room; see what this machine lacks"):
        list(picture_demonstrations(load_tasks("picture_tools", ("count=1",)), direct=0.0))


def test_the_command_writes_chat_data_that_a_fine_tuning_reads(tmp_path):
    path = tmp_path / "pictures.jsonl"
    options = ("--dataset=picture_tools", "--count=6", "--direct=0", "--kinds=count,crop")
    done = run_command("k2jax.env.demonstrate", f"--to={path}", *options)
    assert done.returncode == 0 and "6 conversations" in done.stdout, done.stderr
    config = data_config(tmp_path / "cache", {"s": SourceConfig(kind="chat", path=str(path))}, sequence_length=8192)
    splits = prepare_shards("s", config, kimi.tokenizer()).manifest["splits"]
    assert sum(split["documents"] for split in splits.values()) == 6
