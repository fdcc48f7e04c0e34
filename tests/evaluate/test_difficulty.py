"""Which tasks are kept by their pass rates, and what tasks cover."""

from collections import Counter
import json
import math

from absl import flags
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.task import Task
from k2jax.config import TaskConfig
from k2jax.env import coverage, difficulty
from k2jax.env.coverage import CoverageReport, coverage_of
from k2jax.env.task_lists import listed_tasks
from k2jax.errors import UserError
from k2jax.trajectory.pass_rates import moderate, read_pass_rates
from tests.http_server import served

OPTIONS = ("kinds=add3+sort6", "count=10")
SAMPLES = 4


def command(module, tasks, *words):
    values = flags.FlagValues()
    module.define(values)
    values(["command", *words])
    return module.main(values, tasks)


def model(tasks, asked):
    """A chat server that solves task N in N % 5 of its answers."""
    numbers = {task.instruction[0]["content"]: (number, task) for number, task in enumerate(tasks)}

    async def app(scope, receive, send):
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        prompt = json.loads(body)["messages"][-1]["content"]
        number, task = numbers[prompt]
        asked[prompt] += 1
        text = f"{task.metadata['working']};{task.metadata['answer']}" if asked[prompt] <= number % 5 else "no"
        message = {"role": "assistant", "content": text}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return app


def test_tasks_in_the_band_are_kept_and_reinforcement_learning_reads_the_rates(shared_verifiers, tmp_path):
    tasks, asked = load_tasks("characters", OPTIONS), Counter()
    with served(model(tasks, asked)) as (host, port):
        words = [f"--model=http://{host}:{port}", "--served_model=m", f"--samples={SAMPLES}", f"--workdir={tmp_path}"]
        words += [f"--options={','.join(OPTIONS)}"]
        assert command(difficulty, "characters", *words, "--band=0.25,0.75") == 0
        expected = [task.id for number, task in enumerate(tasks) if 1 <= number % 5 <= 3]
        assert [task.id for task in listed_tasks(str(tmp_path / "kept.jsonl"), (), "all", 0)] == expected
        assert sum(asked.values()) == SAMPLES * len(tasks)
        rates = read_pass_rates(tmp_path / "pass_rates.json")
        assert [rates[task.domain][task.id] for task in tasks] == [(n % 5) / SAMPLES for n in range(len(tasks))]
        assert [task.id for task in moderate(tasks, rates, *TaskConfig(pass_band=(0.25, 0.75)).pass_band)] == expected
        assert command(difficulty, "characters", *words, "--band=0,0.25") == 0  # asks nothing anew
        assert sum(asked.values()) == SAMPLES * len(tasks)
    assert len(listed_tasks(str(tmp_path / "kept.jsonl"), (), "all", 0)) == 4
    assert listed_tasks(str(tmp_path / "asked.jsonl"), (), "all", 3) == tasks[:3]
    table = (tmp_path / "difficulty.md").read_text()
    assert "| add3" in table and "| sort6" in table


@pytest.mark.parametrize(
    ("tasks", "words", "why"),
    [
        ("characters", ["--band=0.9,0.1"], "--band is a least and a largest"),
        ("characters", ["--band=a"], "--band is a least and a largest"),
        ("none.jsonl", [], "there is no file of tasks none.jsonl"),
        ("no_dataset", [], "no dataset"),
    ],
)
def test_a_mistake_is_one_line(tasks, words, why, tmp_path):
    with pytest.raises(UserError, match=why) as error:
        command(difficulty, tasks, "--model=null", f"--workdir={tmp_path}", *words)
    assert "\n" not in str(error.value)


def test_a_file_of_tasks_is_checked(tmp_path):
    path, [one, *_] = tmp_path / "tasks.jsonl", load_tasks("characters", OPTIONS)
    for text, why in (("{}", "no task"), ("", "no tasks"), (f"{one.to_json()}\n" * 2, "several of one id")):
        path.write_text(text)
        with pytest.raises(UserError, match=why):
            listed_tasks(str(path), (), "all", 0)
    path.write_text(one.to_json())
    with pytest.raises(UserError, match="--options are of datasets"):
        listed_tasks(str(path), ("count=3",), "all", 0)
    with pytest.raises(UserError, match="the oracle is a dataset's"):
        command(difficulty, str(path), "--model=oracle", f"--workdir={tmp_path}")


def of(number, domain, tag=None, tools=()):
    metadata = {} if tag is None else {"subject": tag}
    content = ({"role": "user", "content": "?"},)
    return Task(str(number), domain, content, "math", tools=tools, metadata=metadata)


TASKS = [of(0, "a/x", "algebra"), of(1, "a/x", "algebra"), of(2, "a/y", "algebra", ("python a=1",)), of(3, "b|c", 7)]


@pytest.mark.parametrize(
    ("by", "counts"),
    [
        ("domain", {"a/x": 2, "a/y": 1, "b|c": 1}),
        ("category", {"b|c": 1, "x": 2, "y": 1}),
        ("tools", {"none": 3, "python": 1}),
        ("verifier", {"math": 4}),
        ("subject", {"7": 1, "algebra": 3}),
    ],
)
def test_tasks_are_counted_by_category_or_tag(by, counts):
    assert coverage_of(TASKS, by).counts == counts
    with pytest.raises(UserError, match="no task has 'colour'"):
        coverage_of(TASKS, "colour")


def test_what_is_scarce_uneven_or_lost_is_said(tmp_path, capsys):
    even = CoverageReport({"a": 5, "b": 5}, {})
    assert even.evenness == pytest.approx(1) and not even.scarce and CoverageReport({"a": 3}, {}).evenness == 1
    uneven = CoverageReport({"a": 9, "b": 1}, {})
    assert uneven.scarce == ["b"]
    assert uneven.evenness == pytest.approx(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2))
    kept, whole = tmp_path / "kept.jsonl", tmp_path / "all.jsonl"
    kept.write_text("".join(f"{task.to_json()}\n" for task in TASKS[:2]))
    whole.write_text("".join(f"{task.to_json()}\n" for task in TASKS))
    assert command(coverage, str(kept), f"--of={whole}", f"--to={tmp_path / 'c.md'}") == 1
    text = capsys.readouterr().out
    assert text == (tmp_path / "c.md").read_text() and "lost: a/y, b\\|c" in text and "1.00" in text
    assert command(coverage, str(whole)) == 0
