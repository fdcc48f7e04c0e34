"""Registries, options of datasets, and what installed packages declare."""

import pytest

from k2jax.agents.options import parse_options
from k2jax.agents.registry import (
    Registry,
    components,
    datasets,
    environments,
    load_tasks,
    scaffolds,
    toolsets,
    verifiers,
)
from k2jax.errors import UserError
from k2jax.tasks.characters.dataset import CharacterTasks


def maker(
    kinds: tuple[str, ...] = ("a",), count: int = 1, share: float = 0.5, deep: bool = False, split: str = "train"
):
    raise AssertionError


def declare(folder, name, group, entry):
    """An installed package as Python's metadata sees it: a dist-info folder on the path."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


@pytest.mark.parametrize("registry", [components, datasets, environments, scaffolds, toolsets, verifiers])
def test_every_registered_name_can_be_loaded(registry):
    assert registry.names()
    for name in registry.names():
        assert callable(registry.get(name))


def test_a_package_adds_a_dataset_by_an_entry_point(tmp_path, monkeypatch):
    declare(tmp_path, "riddles", "k2jax.datasets", "riddles = riddle_package:Riddles")
    (tmp_path / "riddle_package.py").write_text("class Riddles: pass")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("dataset", "k2jax.datasets", {})
    assert registry.names() == ["riddles"]
    assert registry.get("riddles").__module__ == "riddle_package"


def test_two_packages_that_declare_one_name_are_refused(tmp_path, monkeypatch):
    declare(tmp_path, "first", "k2jax.datasets", "characters = first:Maker")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("dataset", "k2jax.datasets", {"characters": "builtin:Maker"})
    with pytest.raises(UserError, match=r"builtin:Maker and first:Maker; uninstall"):
        registry.names()


def test_an_added_name_is_used_and_never_replaces_another():
    registry = Registry("verifier", "none", {"exact": "builtin:exact"})
    registry.add("mine", "json:dumps")
    assert registry.get("mine")(1) == "1"
    with pytest.raises(UserError, match="there already"):
        registry.add("exact", "json:dumps")
    with pytest.raises(UserError, match="module:attribute"):
        registry.add("other", "json")


@pytest.mark.parametrize("path", ["no_such_module_at_all:f", "json:no_such_function"])
def test_what_cannot_be_loaded_is_a_line_that_names_its_path(path):
    registry = Registry("verifier", "none", {"broken": path})
    with pytest.raises(UserError, match=path):
        registry.get("broken")


def test_an_unknown_name_is_a_line_with_the_nearest_known_one():
    with pytest.raises(UserError, match=r"no dataset 'charakters'; did you mean 'characters'\?"):
        load_tasks("charakters")


def test_options_become_values_of_the_parameters_types():
    options = ("kinds=a+b", "count=3", "share=1e-2", "deep=true")
    assert parse_options(maker, options, "x") == {"kinds": ("a", "b"), "count": 3, "share": 0.01, "deep": True}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("cuont=3", "has no option 'cuont'; did you mean 'count'"),
        ("split=test", "has no option 'split'"),
        ("count", "not of the form name=value"),
        ("count=three", "must be an integer"),
        ("share=half", "must be a number"),
        ("share=nan", "must be a number"),
        ("deep=perhaps", "write true or false"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(option, message):
    with pytest.raises(UserError, match=message) as caught:
        parse_options(maker, (option,), "dataset 'x'")
    assert "\n" not in str(caught.value)


def test_an_option_that_is_given_twice_or_missing_is_refused():
    with pytest.raises(UserError, match="twice"):
        parse_options(maker, ("count=1", "count=2"), "x")
    with pytest.raises(UserError, match=r"needs the option path="):
        parse_options(lambda path: None, (), "x")


def test_tasks_are_loaded_with_their_options():
    tasks = load_tasks("characters", ("kinds=add1+rev2", "count=7", "seed=3"), split="test")
    assert tasks == list(CharacterTasks(("add1", "rev2"), 7, 3, "test").load())
