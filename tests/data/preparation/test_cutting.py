"""Parts of a file together have the records of the whole, wherever it is cut, each with its line and its byte."""

import contextlib
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from k2jax.files.content import FileRange, count_lines
from k2jax.files.readers import lines_of_json, with_lines_before

ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\r\r\n", ""])
LINES = st.one_of(
    st.text('aé月😀\u2028\x85 \\"', max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(["", " ", "{", "[1", "\x00", "\r", '{"text": "' + "long " * 30 + '"}']),
)


def parts_of(path, cuts):
    """All that parts give, with the names and places of the whole file."""
    lines, before = [], 0
    for begin, end in zip([0, *cuts], [*cuts, None], strict=True):
        for line in lines_of_json(path, begin, end):
            name, where = (with_lines_before(text, before) for text in line[:2])
            lines.append(line._replace(name=name, where=where))
        if end is not None:
            before += count_lines(FileRange(path, begin, end))
    return lines


def expected(path, content):
    """Lines without the reader under test: places and values by plain Python."""
    begin, found = 0, []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if begin < len(content) and line.removeprefix(b"\xef\xbb\xbf" * (begin == 0)).strip():
            value = None
            with contextlib.suppress(ValueError):
                value = json.loads(line.decode("utf-8-sig" if begin == 0 else "utf-8"))
            found.append((f"{path}:{number}", f"{path}, line {number}, byte {begin}", value))
        begin += len(line) + 1
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(LINES, ENDS), max_size=5), st.booleans(), st.data())
@example([('"a"', "\n"), ('"é"', "\r\n")], True, None)
def test_parts_of_any_file_have_its_lines_wherever_it_is_cut(tmp_path_factory, lines, mark, data):
    content = b"\xef\xbb\xbf" * mark + "".join(line + end for line, end in lines).encode()
    if content.removeprefix(b"\xef\xbb\xbf").split(b"\n")[0].strip() in (b"[", b"{"):
        return  # such a file is not cut
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    path.write_bytes(content)
    whole = list(lines_of_json(path))
    assert [(line.name, line.where, line.value) for line in whole] == expected(path, content)
    for cut in range(1, len(content)):
        assert parts_of(path, [cut]) == whole
    if data is not None and len(content) > 3:
        cuts = data.draw(st.lists(st.integers(1, len(content) - 1), min_size=2, max_size=6, unique=True).map(sorted))
        assert parts_of(path, cuts) == whole


def test_a_part_within_a_long_line_has_no_line_and_reads_no_further_than_its_own_end(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'"x')
        file.truncate(1 << 40)  # a hole, which nobody could read to its end
    assert list(lines_of_json(path, 1000, 2000)) == []
    assert count_lines(FileRange(path, 1000, 2000)) == 0
