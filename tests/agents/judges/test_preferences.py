"""Preference pairs as dialogues: both orders, the truth of character problems, and the command."""

import json

import pytest

from k2jax.agents.judges.judge_formats import JUDGE_FORMATS
from k2jax.agents.judges.rubrics import Rubric
from k2jax.tasks.characters.dataset import CharacterTasks, final_answer
from k2jax.tasks.judging.preferences import Preference, character_preferences, judge_dialogues
from tests.command import run_command


def test_every_pair_is_shown_in_both_orders_with_its_rubrics_and_the_same_winner():
    pair = Preference("Why?", "Because.", "No.", "second", rubric="Be honest.", reasons="A says nothing.")
    forth, back = (
        [message["content"] for message in dialogue["messages"]]
        for dialogue in judge_dialogues([pair], "chat", (Rubric("short", "core", "Be short."),))
    )
    read = JUDGE_FORMATS["chat"].read
    assert (read(forth[1]), read(back[1])) == ("second", "first")
    assert forth[1].startswith("A says nothing.") and "A says" not in back[1]
    for asked, order in ((forth[0], ("Because.", "No.")), (back[0], ("No.", "Because."))):
        assert asked.index(order[0]) < asked.index(order[1])
        assert "- short (core): Be short.\n- task (human): Be honest.\n" in asked


def test_a_tie_is_a_tie_in_both_orders():
    dialogues = judge_dialogues([Preference("Q", "1", "2", "tie")], "compact")
    assert [[m["content"] for m in d["messages"]] for d in dialogues] == [["QQ|A1|B2>", "="], ["QQ|A2|B1>", "="]]


def test_of_a_character_problem_s_solutions_the_preferred_one_alone_is_right():
    tasks = list(CharacterTasks(("add3", "sort6"), 300).load())
    verdicts = []
    for task, pair in zip(tasks, character_preferences(tasks, direct=0.5), strict=True):
        right = [final_answer(task, answer).value for answer in (pair.first, pair.second)]
        assert right == ([1, 0] if pair.verdict == "first" else [0, 1])
        assert len(pair.first) == len(pair.second) and pair.prompt == task.instruction[0]["content"]
        verdicts.append(pair.verdict)
    assert 120 < verdicts.count("first") < 180  # 150 in the mean, standard deviation 9


def test_the_command_writes_conversations_of_given_pairs_and_of_problems(tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "Q", "first": "1", "second": "2", "verdict": "first"}) + "\n")
    done = run_command("k2jax.tasks.judging.dialogues", f"--preferences={pairs}", f"--to={tmp_path}/new/chat.jsonl")
    assert done.returncode == 0 and "2 conversations" in done.stdout, done.stderr
    lines = (tmp_path / "new" / "chat.jsonl").read_text().splitlines()
    assert [json.loads(line)["messages"][1]["content"] for line in lines] == ["Verdict: A", "Verdict: B"]
    assert "no-praise (prescriptive, mandatory)" in lines[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "Q", "first": "1", "second": "2"}', "preference 1 of .* has no field 'verdict'"),
        ('{"prompt": "Q", "first": "1", "second": "2", "verdict": "A"}', "the verdict 'A'; write first, second or tie"),
        ('{"prompt": "Q", "first": 1, "second": "2", "verdict": "tie"}', "'first' is no field .* with a text"),
        ('{"prompt": "Q", "first": "1", "second": "2", "verdict": "tie", "rubrik": "x"}', "'rubrik' is no field"),
    ],
)
def test_mistakes_in_preferences_are_one_line(tmp_path, line, words):
    from k2jax.errors import UserError
    from k2jax.tasks.judging.preferences import read_preferences

    (tmp_path / "pairs.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=words) as error:
        list(read_preferences(str(tmp_path / "pairs.jsonl")))
    assert "\n" not in str(error.value)
