"""Seams between phases in plots."""

from k2jax.report.figures import learning_rate_figure, loss_figure
from k2jax.report.seams import mark_seams, seams

RECORDS = [
    {
        "step": step,
        "loss": 5.0 - step / 10,
        "learning_rate": 1e-3,
        "grad_norm": 1.0,
        **({"phase": name} if name else {}),
    }
    for step, name in enumerate(["first", "first", "second", "", "second", "long"], 1)
]


def test_a_phase_begins_between_two_steps():
    assert seams(RECORDS) == [(2.5, "second"), (5.5, "long")]
    assert seams([{"step": 1}, {"step": 2}]) == []


def test_every_panel_has_a_line_at_every_seam_and_the_first_its_name():
    for draw in (loss_figure, learning_rate_figure):
        before = [len(axes.lines) for axes in draw(RECORDS).axes]
        figure = mark_seams(draw(RECORDS), RECORDS)
        assert [len(axes.lines) for axes in figure.axes] == [count + 2 for count in before]
        assert {"second", "long"} <= {text.get_text() for text in figure.axes[0].texts}
    assert mark_seams(None, RECORDS) is None
