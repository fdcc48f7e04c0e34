import json

import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.text import byte_tokenizer
from tests.command import run_command
from tests.data.corpora import data_config


def test_demonstrations_are_chat_data_with_the_asked_share_of_direct_answers(tmp_path):
    path = tmp_path / "new" / "chat.jsonl"
    done = run_command("k2jax.tasks.demonstrate", f"--to={path}", "--count=400", "--direct=0.25", "--kinds=add3,sort6")
    assert done.returncode == 0 and "400 conversations" in done.stdout, done.stderr
    records = [json.loads(line) for line in path.read_text().splitlines()]
    answers = {record["messages"][0]["content"]: record["messages"][1]["content"] for record in records}
    assert len(answers) == 400
    for question, answer in answers.items():
        final = answer.rpartition(";")[2]
        if question[0] == "s":
            assert final == "".join(sorted(question[1:-1]))
        else:
            assert int(final) == sum(map(int, question[:-1].split("+")))
    direct = sum(";" not in answer for answer in answers.values())
    assert 70 <= direct <= 130  # 100 in the mean, standard deviation 9
    source = SourceConfig(kind="chat", path=str(path))
    config = data_config(tmp_path / "cache", {"s": source}, chat_format="plain", sequence_length=256)
    splits = prepare_shards("s", config, byte_tokenizer()).manifest["splits"]
    assert sum(split["documents"] for split in splits.values()) == 400
    written = sum(len(answer.encode()) + 1 for answer in answers.values())
    assert sum(split["assistant_tokens"] for split in splits.values()) == written


@pytest.mark.parametrize(("flag", "words"), [("--kinds=mul3", "no kind"), ("--direct=2", "between 0 and 1")])
def test_mistakes_are_one_line(tmp_path, flag, words):
    done = run_command("k2jax.tasks.demonstrate", f"--to={tmp_path}/chat.jsonl", flag)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "chat.jsonl").exists()
