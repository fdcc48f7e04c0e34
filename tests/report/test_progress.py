"""Progress: plain lines where nobody watches, a bar on a terminal, an intact terminal afterwards."""

import io

import pytest
from rich.console import Console

from k2jax.report.progress import Progress

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # of the cursor


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def terminal(width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": "xterm-256color"})


def run(progress: Progress, clock: Clock, steps: range, first: float = 30.0, each: float = 2.0) -> None:
    for step in steps:
        clock.now += first if step == steps[0] else each
        progress.update(step, {"loss": 8.0 / step, "tokens_per_second": 4096.0})


def test_a_log_file_gets_the_first_step_a_line_every_ten_seconds_and_the_last():
    clock, console = Clock(), plain()
    with Progress(13, 0, console, clock=clock) as progress:
        run(progress, clock, range(1, 14))
    lines = console.file.getvalue().splitlines()
    assert [line.split(" · ")[0] for line in lines] == ["step 1/13", "step 6/13", "step 11/13", "step 13/13"]
    assert "first step 30.0 s, compilation included" in lines[0]
    assert lines[1] == "step 6/13 · loss 1.33 · 4,100 tokens/s · 14.0 s left"  # longer than the width, not folded
    assert "\x1b" not in console.file.getvalue()


def test_time_left_excludes_the_compile_step_and_counts_from_the_resumed_step():
    clock = Clock()
    with Progress(200, 100, plain(), clock=clock) as progress:
        assert progress.seconds_left() is None
        run(progress, clock, range(101, 102))
        assert progress.seconds_left() is None
        run(progress, clock, range(102, 112), first=2.0)
        assert progress.seconds_left() == pytest.approx(89 * 2.0)


def test_time_left_counts_a_step_of_each_phase_by_its_work():
    """Steps behind the tenth take three times as long."""
    clock = Clock()
    work = lambda step: step + 2 * max(0, step - 10)  # noqa: E731
    with Progress(20, 0, plain(), work=work, clock=clock) as progress:
        run(progress, clock, range(1, 6), each=2.0)
        assert progress.seconds_left() == pytest.approx(5 * 2.0 + 10 * 6.0)


def test_what_is_measured_before_the_first_step_is_no_step_by_which_the_time_left_is_told():
    clock, console = Clock(), plain()
    with Progress(13, 0, console, clock=clock) as progress:
        clock.now += 100.0
        progress.update(0, {"loss": 9.0})
        run(progress, clock, range(1, 4))
        assert progress.seconds_left() == pytest.approx(10 * 2.0)
    assert console.file.getvalue().startswith("step 1/13 · loss 8.00")


def test_a_line_tells_where_a_run_stopped():
    clock, console = Clock(), plain()
    with pytest.raises(KeyboardInterrupt), Progress(100, 0, console, clock=clock) as progress:
        run(progress, clock, range(1, 4))
        raise KeyboardInterrupt
    assert console.file.getvalue().splitlines()[-1].startswith("step 3/100")


@pytest.mark.parametrize("width", [30, 120])
def test_a_terminal_gets_one_bar_with_notes_above(width):
    clock, console = Clock(), terminal(width)
    with Progress(20, 0, console, clock=clock) as progress:
        run(progress, clock, range(1, 11))
        progress.note("[saved] checkpoint 10")
    text = console.file.getvalue()
    assert "[saved] checkpoint 10" in text  # brackets are text, not markup
    assert "step 10/20" in text
    if width == 120:
        assert all(part in text for part in ("50%", "loss 0.8", "4,100 tokens/s", "20.0 s left"))


def test_an_exception_leaves_the_terminal_with_its_cursor():
    console = terminal()
    with pytest.raises(RuntimeError), Progress(20, 0, console) as progress:
        progress.update(1, {"loss": float("nan")})
        raise RuntimeError
    text = console.file.getvalue()
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert text.rindex(SHOW) > text.rindex(HIDE)


def test_a_silent_process_writes_nothing():
    console = Console(file=io.StringIO(), quiet=True)
    with Progress(2, 0, console) as progress:
        progress.update(1, {"loss": 1.0})
        progress.note("hello")
    assert console.file.getvalue() == ""
