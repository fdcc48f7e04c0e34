"""Paths of data stay in the folder that the user has chosen, whatever they are made of."""

import os

from hypothesis import given, settings, strategies
import pytest

from k2jax.errors import UserError
from k2jax.files.confined import confined


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data/inside/deep").mkdir(parents=True)
    (tmp_path / "data-private").mkdir()
    (tmp_path / "private/secret").mkdir(parents=True)
    (tmp_path / "data/out").symlink_to("../private")
    (tmp_path / "data/chain").symlink_to("out/secret")
    (tmp_path / "data/round").symlink_to("round")
    (tmp_path / "data/within").symlink_to("inside/deep")
    (tmp_path / "link").symlink_to("data")
    return tmp_path / "data"


@pytest.mark.parametrize(
    "path",
    ["..", ".", "", "/", "../private", "inside/../../private", "out", "out/secret", "chain", "round", "missing",
     "a\0b", "x" * 5000, "../data-private", "/etc", "inside/../.."],
)  # fmt: skip
def test_what_leads_out_is_refused(folder, path):
    with pytest.raises(UserError, match="repo of record 1"):
        confined(path, folder, "repo of record 1")


def test_what_lies_below_is_its_real_path(folder):
    inside = str(folder.resolve() / "inside")
    assert confined("inside", folder, "x") == confined(inside, folder, "x") == inside
    assert confined("within", folder, "x") == f"{inside}/deep"
    assert confined("inside/../inside", folder.parent / "link", "x") == inside


@settings(max_examples=200, deadline=None)
@given(strategies.lists(strategies.sampled_from(["..", ".", "", "inside", "deep", "out", "within", "secret"])))
def test_no_path_leads_out(tmp_path_factory, names):
    root = tmp_path_factory.getbasetemp() / "confined"
    if not root.exists():
        (root / "data/inside/deep").mkdir(parents=True)
        (root / "secret").mkdir()
        (root / "data/out").symlink_to("..")
        (root / "data/within").symlink_to("inside/deep")
    try:
        real = confined("/".join(names), root / "data", "x")
    except UserError:
        return
    assert os.path.commonpath([real, (root / "data").resolve()]) == str((root / "data").resolve())
