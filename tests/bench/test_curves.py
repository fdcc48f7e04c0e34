"""Exponents and bends of curves against NumPy's polynomial fit and power laws that are given."""

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.bench.curves import curves
from k2jax.bench.curves.__main__ import define, main
from k2jax.bench.curves.fit import bend, exponent
from k2jax.cli import parse
from k2jax.errors import UserError
from k2jax.model import active_parameters

SIZES = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0]


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=7))
@settings(deadline=None, max_examples=50)
def test_an_exponent_is_the_slope_of_a_line_through_logarithms(costs):
    expected = np.polyfit(np.log(SIZES[: len(costs)]), np.log(costs), 1)[0]
    assert exponent(SIZES[: len(costs)], costs) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations((0.0, 0.5, 1.0, 2.0), 2)))
@pytest.mark.parametrize("place", [2, 3, 4])
def test_a_bend_is_found_where_one_power_gives_way_to_another(before, after, place):
    rng = np.random.default_rng(place)
    at = SIZES[place]
    costs = [3.0 * at**before * (size / at) ** (after if size > at else before) for size in SIZES]
    found = bend(SIZES, np.array(costs) * np.exp(rng.normal(0, 0.01, len(costs))))
    assert found.at == at and found.before == pytest.approx(before, abs=0.03)
    assert found.after == pytest.approx(after, abs=0.03)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=50)
def test_one_power_with_noise_has_no_bend(seed):
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.03, len(SIZES)))
    assert bend(SIZES, np.sqrt(SIZES) * noise) is None


def test_a_point_that_is_off_makes_no_bend_and_neither_do_four_points():
    assert (
        bend(SIZES, [*SIZES[:-1], 40 * SIZES[-1]]) is None or bend(SIZES, [*SIZES[:-1], 40 * SIZES[-1]]).at < SIZES[5]
    )
    assert bend(SIZES[:4], [1, 1, 10, 100]) is None


def test_models_of_other_widths_have_weights_in_proportion_to_the_square():
    weights = [active_parameters(curves.model_of_width(width), embeddings=False) for width in (128, 256, 512)]
    assert weights[1] / weights[0] == pytest.approx(4, rel=0.1) and weights[2] / weights[1] == pytest.approx(4, rel=0.1)


def test_the_command_measures_what_is_missing_and_writes_the_page(tmp_path, monkeypatch, capsys):
    def values(*arguments):
        return parse(["bench.curves", *arguments], define, "", ("NAME",), 1)[0]

    known = {"documents": {5_000: 1.0, 10_000: 2.0, 20_000: 4.1}, "devices": {1: 1.0, 2: 1.1}}
    lines = [{"curve": name, "size": n, "cost": c} for name, costs in known.items() for n, c in costs.items()]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = []

    def measured(name, size, devices, rounds):
        asked.append((name, size, devices, rounds))
        return size / 5_000

    monkeypatch.setattr("k2jax.bench.curves.__main__._measured", measured)
    main(values(f"--workdir={tmp_path}", "--rounds=3"), "documents")
    assert asked == [("documents", size, 1, 3) for size in (50_000, 100_000, 200_000)]
    page = (tmp_path / "curves.md").read_text()
    assert "| 1.00 " in page and "`devices`" in page and (tmp_path / "curves.png").stat().st_size > 10_000
    main(values(f"--workdir={tmp_path}"), "documents")
    assert len(asked) == 3
    monkeypatch.undo()
    with pytest.raises(UserError, match="no curve 'nothing'; there are model"):
        main(values("--at=3"), "nothing")
