"""Each folder of tests has a budget, and what is over it is said."""

from collections import Counter
from pathlib import Path
import tomllib

from tests.budget import BUDGETS, folder_of, table

ROOT = Path(__file__).parents[1]


def test_every_folder_has_a_budget_and_all_of_them_are_fifteen_minutes():
    folders = {folder_of(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("tests/**/test_*.py")}
    budgets = tomllib.loads(BUDGETS.read_text())
    assert budgets.keys() == folders and sum(budgets.values()) <= 900


def test_what_is_over_its_budget_is_said():
    lines = list(table(Counter({"slow": 9.4, "quick": 0.5, "new": 0.1}), {"slow": 5, "quick": 1}))
    assert [line.split()[:3] for line in lines[1:3]] == [["slow", "9.4", "5"], ["quick", "0.5", "1"]]
    assert "OVER by 4 s" in lines[1] and "OVER" not in lines[2] and "no budget" in lines[3]
    assert lines[4].split()[:3] == ["sum", "10.0", "6"]
