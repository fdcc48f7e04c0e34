"""What a command says when it cannot go on."""

import asyncio
import errno
import gc
import logging
import subprocess
import sys

import pytest

from k2jax import cli
from k2jax.errors import UserError


def refusal(monkeypatch, capsys, arguments=(), main=lambda values: 0, define=lambda values: None) -> str:
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit) as ended:
        cli.run(main, define, "A command.")
    assert ended.value.code == cli.USER_ERROR
    return capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_line_that_names_the_file(monkeypatch, capsys, number):
    def main(values):
        raise OSError(number, "no room", "runs/a/metrics.jsonl")

    line = refusal(monkeypatch, capsys, main=main)
    assert line == "error: runs/a/metrics.jsonl cannot be written: no room; make room\n"


@pytest.mark.parametrize("number", cli.NO_ACCESS)
def test_a_path_that_the_user_has_to_mend_is_one_line(monkeypatch, capsys, number):
    def main(values):
        raise OSError(number, "Permission denied", "runs/a/.lock")

    assert refusal(monkeypatch, capsys, main=main) == "error: runs/a/.lock: Permission denied\n"


@pytest.mark.parametrize("arguments", [["--prompt=a\udcff"], ["fine", "\udc80"], ["--help", "\udc80"]])
def test_an_argument_that_is_no_text_is_named(monkeypatch, capsys, arguments):
    line = refusal(monkeypatch, capsys, arguments)
    assert line.startswith(f"error: argument {len(arguments)}, b") and line.endswith("is not UTF-8\n")


PRINTS = """
import sys
from absl import flags
from k2jax import cli
def define(values): flags.DEFINE_bool("lines", False, "", flag_values=values)
def main(values):
    if values.lines:
        for i in range(100_000): print("line", i)
    else: raise BrokenPipeError(32, "of a socket")
cli.run(main, define, "word " * 50_000)
"""


@pytest.mark.parametrize(
    ("argument", "shell", "code"),
    [("--help", "| head -c 1", 141), ("--lines", "2>&1 | true", 141), ("", "", 1)],
)
def test_a_reader_that_has_read_enough_ends_a_command_silently(argument, shell, code, tmp_path):
    """Not so a pipe of the command's own that breaks."""
    (tmp_path / "command.py").write_text(PRINTS)
    line = f"{sys.executable} command.py {argument} {shell}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("of a socket" in done.stderr) == (code == 1) and (code == 1 or not done.stderr)


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch):
    def main(values):
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(sys, "argv", ["command"])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(OSError, match="the disk fails"):
        cli.run(main, lambda values: None, "A command.")


def test_what_the_other_arrays_of_a_damaged_checkpoint_report_is_left_out(monkeypatch, capsys, caplog):
    def fail():
        raise ValueError("Encountered error while reading array index: (slice(0, 3, 1),)")

    async def abandoned():  # asyncio logs the error of a task for which nobody waits
        task = asyncio.ensure_future(asyncio.to_thread(fail))
        while not task.done():
            await asyncio.sleep(0.001)

    def main(values):
        asyncio.run(abandoned())
        gc.collect()
        raise UserError("the first one is raised")

    try:
        assert refusal(monkeypatch, capsys, main=main) == "error: the first one is raised\n"
        assert not caplog.records
    finally:
        logging.getLogger("asyncio").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--steps=400", "unknown flag --steps; did you mean '--config.train.steps'?"),
        ("--confg=x.py", "unknown flag --confg; did you mean 'config'?"),
        ("--nothing_like_it=1", "unknown flag --nothing_like_it; there are config\n"),
    ],
)
def test_an_unknown_flag_names_the_one_that_is_meant(monkeypatch, capsys, argument, words):
    assert words in refusal(monkeypatch, capsys, [argument], define=cli.define_config)
