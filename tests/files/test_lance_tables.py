"""Data sets of Lance are read as they were written, whole or in parts, and what is damaged is reported."""

import itertools
from pathlib import Path
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import lance
import pyarrow as pa
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.preparation import cutting
from k2jax.data.preparation.cutting import cut
from k2jax.data.sources import CorruptRecords, texts_of
from k2jax.errors import UserError
from k2jax.files.lance_tables import newest_manifest


def write(folder, *batches, **options):
    """A data set of which every batch of texts is a version."""
    for number, batch in enumerate(batches):
        table = pa.table({"text": pa.array(batch, pa.string()), "n": list(range(len(batch)))})
        written = lance.write_dataset(table, str(folder), mode="append" if number else "create", **options)
    return written


def read(path, field="text"):
    source, report = SourceConfig(kind="lance", path=str(path), field=field), CorruptRecords()
    parts = [part for task in cut("mine", source) for part in task.parts]
    return list(texts_of(source, parts, report)), report.shown, parts


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 12), st.integers(1, 4000), st.booleans()
)
def test_documents_are_the_rows_that_were_written_and_not_deleted(batches, rows, deleted, task, descending):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "TASK_BYTES", task)
        place = Path(folder) / "a.lance"
        names = {"max_rows_per_file": rows, "enable_v2_manifest_paths": descending}
        write(place, *batches, **names).delete(f"n = {deleted}")
        documents, reports, parts = read(folder)
        kept = [[text for n, text in enumerate(batch) if n != deleted] for batch in batches]
        assert [text for _, text in documents] == list(itertools.chain(*kept)) and not reports
        assert [name for name, _ in documents] == [f"{place}, row {row}" for row in range(len(documents))]
        assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]


def test_a_newer_version_is_another_file_and_an_older_one_is_not_read(tmp_path):
    written = write(tmp_path / "a.lance", ["one"], ["two"])
    before = newest_manifest(tmp_path / "a.lance")
    written.delete("text = 'one'")
    assert newest_manifest(tmp_path / "a.lance") != before
    assert [text for _, text in read(tmp_path)[0]] == ["two"]


def test_a_folder_a_data_set_or_a_pattern_of_names_is_a_source(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / "sets" / f"{name}.lance", [name])
    (tmp_path / "sets" / "notes.txt").write_text("not read")
    for path, texts in (("sets", "ab"), ("sets/b.lance", "b"), ("sets/*.lance", "ab")):
        assert [text for _, text in read(tmp_path / path)[0]] == list(texts)
    for path in ("sets/notes.txt", "sets/*.txt", "none"):
        with pytest.raises(UserError, match=r"source 'mine'"):
            read(tmp_path / path)


def test_cells_that_are_no_texts_are_reported_with_their_rows(tmp_path):
    write(tmp_path / "a.lance", ["x", None, "y"])
    documents, reports, _ = read(tmp_path)
    assert [text for _, text in documents] == ["x", "y"]
    assert reports == [f"{tmp_path}/a.lance, row 1: field 'text' is null, not a string"]
    source = SourceConfig(kind="lance", path=str(tmp_path))
    with pytest.raises(UserError, match=r"corrupt record in .*a\.lance, row 1: field 'text' is null"):
        list(texts_of(source, [part for task in cut("mine", source) for part in task.parts], CorruptRecords("fail")))
    assert read(tmp_path, "n")[1][0] == f"{tmp_path}/a.lance, row 0: field 'n' is int, not a string"
    assert read(tmp_path, "body")[:2] == ([], [f"{tmp_path}/a.lance: no column 'body', only text, n"])


@pytest.mark.parametrize("damage", ["cut", "zeros", "gone"])
def test_a_damaged_fragment_is_one_record_and_the_others_are_read(tmp_path, damage):
    write(tmp_path / "a.lance", ["one", "two"], ["three"], ["four"])
    names = [each.data_files()[0].path for each in lance.dataset(str(tmp_path / "a.lance")).get_fragments()]
    file = tmp_path / "a.lance" / "data" / names[1]
    size = file.stat().st_size
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: size // 2] + bytes(size - size // 2) * (damage == "zeros"))
    documents, reports, _ = read(tmp_path)
    assert [text for _, text in documents] == ["one", "two", "four"]
    assert len(reports) == 1 and f"{tmp_path}/a.lance, rows 2 to 2: fragment 1 is broken: " in reports[0]


def test_a_version_that_cannot_be_opened_is_reported(tmp_path):
    write(tmp_path / "a.lance", ["one"])
    newest_manifest(tmp_path / "a.lance").write_bytes(b"no manifest")
    documents, reports, _ = read(tmp_path)
    assert not documents and reports[0].startswith(f"{tmp_path}/a.lance: not readable as Lance: ")
