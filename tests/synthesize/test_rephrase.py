"""Runs of the pipeline ``rephrase``: what is kept, what training reads, kills, and how the writer is asked."""

import asyncio
from collections import Counter
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.sources import CorruptRecords, documents
from k2jax.errors import UserError
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.kept_results import LOG, STAGES
from k2jax.synthesize.questions import ProgramModel
from k2jax.synthesize.rephrase.chunkwise import planned, rephrased
from k2jax.synthesize.rephrase.fidelity_judge import judged
from k2jax.synthesize.rephrase.source_texts import source_documents
from k2jax.synthesize.settings import RephraseConfig, SynthesisConfig, ToolUseConfig, resolved, synthesis
from tests.synthesize.test_pipeline import run

SIZES = RephraseConfig(documents=6, problems=4, rephrasings=4, infidelities=0.3)
SMALL = SynthesisConfig(pipeline="rephrase", rephrase=SIZES)
OUTPUTS = ("raw.jsonl", "questions.jsonl", "funnel.json", "funnel.md", "manifest.json")


def outputs(folder):
    files = [*(folder / name for name in OUTPUTS), *sorted((folder / "rephrasings").iterdir())]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rephrase")
    return folder, run(folder, SMALL)[0]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_planted_is_found_and_what_is_kept_says_what_its_source_says(made):
    folder, counts = made
    checks = json.loads((folder / "manifest.json").read_text())["checks"]
    assert checks.pop("nothing") == {"chunks": pytest.approx(60, abs=30), "overlap": 0, "judge": 0}
    assert len(checks) == 5
    for kind in checks.values():
        assert kind["overlap"] + kind["judge"] == kind["chunks"] > 0
    facts = {record["id"]: record["facts"] for record in source_documents(SIZES, 0)}
    texts = [record for path in sorted((folder / "rephrasings").iterdir()) for record in read(path)]
    assert len(texts) == counts[-1].kept >= 0.6 * counts[0].kept
    for record in texts:
        for fact in facts[record["document"]]:
            assert all(str(value) in record["text"] for key, value in fact.items() if key not in ("form", "subject"))
            assert fact.get("subject", "x").split()[-1] in record["text"]
    assert Counter((record["document"], record["rephrasing"]) for record in texts).most_common(1)[0][1] == 1


def test_training_reads_each_rephrasing_as_a_source_of_its_own(made):
    folder, counts = made
    paths = ["raw.jsonl", *(f"rephrasings/{number:02}.jsonl" for number in range(4)), "rephrasings"]
    sizes = []
    for path in paths:
        report = CorruptRecords("fail")
        sizes.append(len(list(documents("r", SourceConfig(kind="jsonl", path=str(folder / path)), report))))
    assert sizes[0] == 10 and sum(sizes[1:5]) == sizes[5] == counts[-1].kept


def test_questions_are_answered_by_their_document(made):
    raw = {record["document"]: record["text"] for record in read(made[0] / "raw.jsonl")}
    asked = read(made[0] / "questions.jsonl")
    assert len(asked) == 6 * 2 * 6
    for one in asked:
        assert one["answer"] in raw[one["document"]] and one["answer"] not in one["question"]


@pytest.mark.slow
def test_a_second_run_does_nothing_and_a_replay_gives_the_same_bytes(made, tmp_path):
    folder, counts = made
    before = outputs(folder)
    assert run(folder, SMALL)[0] == counts and outputs(folder) == before
    run(tmp_path, SMALL, replay=str(folder), at_once=3)
    assert outputs(tmp_path) == before


class Writer:
    """Answers with given texts, and notes what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def write(self, record, **options):
        def answer(question, seed):
            self.asked.append(question.messages)
            return {"content": self.answers.pop(0)}

        model = ProgramModel("writer", answer)
        return asyncio.run(rephrased(**options)(record, Asker({"writer": model}, "record")))


RECORD = {
    "id": "d", "domain": "knowledge", "language": "en", "rephrasing": 0, "style": "notes", "perspective": "a pupil",
    "text": "Ada Lindgren left in 1901. Hugo Salas stayed until 1950.",
}  # fmt: skip
FIRST, SECOND = "It was 1901 when Ada Lindgren went away.", "Until 1950 Hugo Salas remained."


def test_a_long_document_is_written_in_chunks_with_what_came_before():
    writer = Writer(FIRST, SECOND)
    made = writer.write(RECORD, chunk_words=5, context_words=3)
    assert [chunk["text"] for chunk in made.kept[0]["chunks"]] == [FIRST, SECOND]
    first, second = (messages[0]["content"] for messages in writer.asked)
    assert "Ada Lindgren left" in first and "Hugo" not in first and "Part 1 of 2" in first
    assert "Hugo Salas stayed" in second and "Lindgren went away." in second and "1901" not in second


def test_an_unfaithful_chunk_is_written_again_and_then_drops_the_rephrasing():
    writer = Writer(FIRST.replace("1901", "1902"), FIRST, SECOND)
    made = writer.write(RECORD, chunk_words=5, context_words=0)
    assert [attempt["found"] for attempt in made.kept[0]["attempts"]] == ["changed number", "", ""]
    assert [message["role"] for message in writer.asked[1]] == ["user", "assistant", "user"]
    assert "changed number: 1901 became 1902" in writer.asked[1][-1]["content"]
    writer = Writer(FIRST, "Until 1950 Hugo Berger remained.", "Until 1950 he remained.")
    made = writer.write(RECORD, chunk_words=5, context_words=0)
    [(reason, dropped)] = made.dropped
    assert not made.kept and reason == "omission"
    assert [attempt["found"] for attempt in dropped["attempts"]] == ["", "changed name", "omission"]


@pytest.mark.parametrize(
    ("unsupported", "missing", "reason"),
    [([], [], None), (["He ate."], [], "finds what the source does not"), ([], ["Salas stayed."], "misses what")],
)
def test_the_judge_keeps_what_it_finds_nothing_in(unsupported, missing, reason):
    verdicts = [{"unsupported": [], "missing": []}, {"unsupported": unsupported, "missing": missing}]
    chunks = [
        {"number": n, "of": 2, "source": "S", "text": text, "facts": []} for n, text in enumerate((FIRST, SECOND))
    ]
    asked = []

    def answer(question, seed):
        asked.append(question.messages[0]["content"])
        return {"content": json.dumps(verdicts[len(asked) - 1])}

    asker = Asker({"judge": ProgramModel("judge", answer)}, "record")
    made = asyncio.run(judged()({**RECORD, "chunks": chunks}, asker))
    assert FIRST in asked[0] and SECOND in asked[1] and len(made.kept) == (reason is None)
    assert reason is None or reason in made.dropped[0][0]


def test_no_two_rephrasings_of_a_document_have_one_style_and_perspective():
    made = asyncio.run(planned(30)({"id": "d", "domain": "knowledge"}, Asker({}, "record")))
    assert len({(record["style"], record["perspective"]) for record in made.kept}) == 30


def test_texts_are_read_from_files(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "One."}\n{"text": "Zwei.", "id": "z", "domain": "mathematics", "language": "de"}\n'
    )
    (tmp_path / "b.txt").write_text("Three.")
    (tmp_path / "c.png").write_text("no text")
    found = source_documents(RephraseConfig(path=str(tmp_path)), 0)
    assert [record["text"] for record in found] == ["One.", "Zwei.", "Three."]
    assert found[1] == {"id": "z", "domain": "mathematics", "language": "de", "text": "Zwei."}
    assert len(source_documents(RephraseConfig(path=str(tmp_path), documents=2), 0)) == 2
    for line, why in (
        ("[1]", "no JSON object"),
        ('{"text": 3}', "must be strings"),
        ('{"text": " "}', "characters"),
        ('{"text": "a", "domain": "b"}', "domain is"),
    ):
        (tmp_path / "d.jsonl").write_text(line)
        with pytest.raises(UserError, match=why):
            source_documents(RephraseConfig(path=str(tmp_path / "d.jsonl")), 0)
    with pytest.raises(UserError, match="no file of"):
        source_documents(RephraseConfig(path=str(tmp_path / "c.png")), 0)


def test_sizes_of_another_pipeline_are_refused():
    with pytest.raises(UserError, match=r"config\.tool_use is of the pipeline tool_use, and this is rephrase"):
        resolved(synthesis(pipeline="rephrase", tool_use=ToolUseConfig(tools=3)))


COMMAND = """
import sys
from tests.synthesize.test_rephrase import SMALL, run
run(sys.argv[1], SMALL, workers=2, at_once=2)
"""


@pytest.mark.slow
def test_kills_change_no_byte(made, tmp_path):
    rng, kills = random.Random(0), 0
    while kills < 10:
        process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], start_new_session=True)
        deadline = time.monotonic() + rng.uniform(0.5, 5.0)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            assert process.returncode == 0
            for path in tmp_path.glob(f"{STAGES}/*/{LOG}"):  # done before the last kill: begin again somewhere
                path.unlink() if rng.random() < 0.5 else None
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    run(tmp_path, SMALL, workers=2)
    assert outputs(tmp_path) == outputs(made[0])
