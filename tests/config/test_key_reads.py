"""Every key of the configuration is read by the library, outside the package that declares and checks it."""

import dataclasses
from pathlib import Path

import pytest

from k2jax.config.schema import Config
from tests.config.key_reads import groups_below, unread_keys

ROOT = Path(__file__).parents[2]


def sources():
    """The library's files, without those that declare, check and document keys."""
    paths = [path for folder in ("k2jax", "pallas_kernels") for path in (ROOT / folder).rglob("*.py")]
    return [path.read_text() for path in paths if ROOT / "k2jax" / "config" not in path.parents]


def test_every_key_is_read_outside_its_own_package():
    schema = [path.read_text() for path in (ROOT / "k2jax" / "config" / "schema").glob("*.py")]
    assert len(groups_below(Config)) > 25
    assert unread_keys(Config, sources(), schema) == set()


@dataclasses.dataclass(frozen=True)
class Saving:
    every: int = 1
    keep: int = 1


@dataclasses.dataclass(frozen=True)
class Report:
    every: int = 1

    @property
    def often(self) -> bool:
        return self.every == 1


@dataclasses.dataclass(frozen=True)
class Everything:
    saving: Saving = Saving()
    report: Report = Report()


GROUPS = {"Everything.saving", "Everything.report", "Saving.every", "Saving.keep", "Report.every"}
DECLARED = "class Report:\n    @property\n    def often(self) -> bool:\n        return self.every == 1\n"


KEEP, REPORT = {"Saving.keep"}, {"Everything.report", "Report.every"}


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("def f(config: Everything): return config.saving.every", {"Everything.saving", "Saving.every"}),
        (
            "def f(c: Everything | None):\n s, r = c.saving, c.report\n return s.keep",
            {"Everything.saving", "Everything.report", *KEEP},
        ),
        ("def f(config): return config.saving.every", set()),
        ("def f(config: Everything): config.saving.every = 2", {"Everything.saving"}),
        ("def f(config: Everything, other): return other.every, config.report.often", REPORT),
        ("def f(config: Saving): return getattr(config, 'keep')", KEEP),
        ("def f(config: Saving): return lambda each: config.keep", KEEP),
        ("def f() -> Saving: ...\ndef g(): return f().keep", KEEP),
        ("def f(many: dict[str, Saving]): return [each.keep for name, each in many.items()]", KEEP),
        (
            "class Run:\n def __init__(self, config: Everything): self.config = config\n"
            "def f(run: Run): return run.config.saving.keep",
            {"Everything.saving", "Saving.keep"},
        ),
    ],
)
def test_a_read_is_one_of_its_own_group_alone(source, read):
    assert unread_keys(Everything, [source], [DECLARED]) == GROUPS - read
