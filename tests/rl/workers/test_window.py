"""The window of prompts: what holds after every call, in any order of calls."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
import pytest

from k2jax.rl.workers.window import DrawWindow


class WindowMachine(RuleBasedStateMachine):
    """Draws, ends in any order, batches, and restarts from a checkpoint, beside a list of what was handed on."""

    @initialize(batch=st.integers(1, 4), ahead=st.integers(1, 3), iterations=st.integers(1, 8))
    def begin(self, batch, ahead, iterations):
        self.sizes = batch, ahead * batch, iterations * batch
        self.window, self.handed_on, self.drawn = DrawWindow(*self.sizes), [], 0

    @rule()
    def draw(self):
        slowest = min(self.window.open - self.window.complete, default=self.drawn)
        waits, number = not self.window.open - self.window.complete, self.window.draw()
        if waits and len(self.window.complete) < self.sizes[0]:
            assert (number is None) == (self.drawn == self.sizes[2]), "nothing is under way, and no batch is there"
        if number is not None:
            assert self.drawn < min(slowest + self.sizes[1], self.sizes[2])
            assert number == self.drawn
            self.drawn += 1

    def oldest(self):
        return next(number for number in range(self.drawn + 1) if number not in self.handed_on)

    @precondition(lambda self: self.window.open - self.window.complete)
    @rule(data=st.data())
    def finish(self, data):
        number = data.draw(st.sampled_from(sorted(self.window.open - self.window.complete)))
        self.window.finish(number)
        with pytest.raises(ValueError, match="not under way"):
            self.window.finish(number)

    @precondition(lambda self: self.window.complete)
    @rule(data=st.data())
    def again(self, data):
        number = data.draw(st.sampled_from(sorted(self.window.complete)))
        self.window.again(number)
        assert number in self.window.open
        with pytest.raises(KeyError):
            self.window.again(number)

    @rule()
    def take(self):
        complete, open_numbers = sorted(self.window.complete), set(self.window.open)
        taken = self.window.take()
        assert (taken is None) == (len(complete) < self.sizes[0])
        if taken is not None:
            batch, overtaken = taken
            assert batch == complete[: self.sizes[0]]
            assert set(overtaken) == {n for n in open_numbers - set(complete) if n < max(batch)}
            self.handed_on += batch

    @rule()
    def go_on_in_another_process(self):
        drawn, open_numbers = self.window.drawn, sorted(self.window.open)
        self.window = DrawWindow(*self.sizes)
        self.window.restore(drawn, open_numbers)

    @invariant()
    def every_number_is_open_or_was_handed_on_once(self):
        assert len(set(self.handed_on)) == len(self.handed_on)
        assert sorted([*self.handed_on, *self.window.open]) == list(range(self.drawn))
        assert len(self.window.open) <= self.sizes[1] and self.window.oldest == self.oldest()


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))


def test_a_run_hands_on_every_prompt_and_a_slow_one_holds_the_draw_up():
    window = DrawWindow(batch=2, look_ahead=4, total=8)
    for _ in range(4):
        window.draw()
    assert window.draw() is None  # the prompt 0 is slow, and nothing is drawn beyond the prompt 3
    window.finish(1)
    window.finish(3)
    assert window.take() == ([1, 3], [0, 2])
    window.finish(0)
    assert [window.draw() for _ in range(3)] == [4, 5, None]  # four are open
    window.finish(2)
    assert window.take() == ([0, 2], [])
    assert [window.draw() for _ in range(3)] == [6, 7, None]


def test_a_slow_prompt_that_is_complete_at_last_does_not_hold_the_draw_up():
    window = DrawWindow(batch=2, look_ahead=4, total=8)
    for _ in range(4):
        window.draw()
    for number in (1, 2):
        window.finish(number)
    assert window.take() == ([1, 2], [0])
    assert window.draw() is None  # 0 is the slowest, and 3 is the last before its bound
    window.finish(3)
    window.finish(0)
    assert window.take() == ([0, 3], [])


def test_a_window_that_cannot_hold_a_batch_is_refused():
    with pytest.raises(ValueError, match="at least one batch"):
        DrawWindow(batch=4, look_ahead=3, total=8)
