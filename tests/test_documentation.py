"""The README and the documentation name only what exists: files, sections, modules, flags, keys, imports."""

import argparse
import ast
import functools
import importlib
from pathlib import Path
import pkgutil
import re
import runpy
import shlex
import sys
import tomllib
from unittest import mock

import pytest

from k2jax import cli
from k2jax.config import defaults, resolve
from k2jax.config.reference import keys
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.model.remat import activation_table
from k2jax.sandbox import add_commands
from k2jax.synthesize.settings import SynthesisConfig, resolved

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"python -m ((?:k2jax|pallas_kernels)[\w.]*)")
KEY = re.compile(rf"(?:{'|'.join({key.path.partition('.')[0] for key in keys()})})(?:\.[A-Za-z_0-9]+)+")
NO_KEY = re.compile(r".*\.(?:py|ipynb|jsonl|json|md|update)")
ARGUMENTS = {  # positional arguments that are names of the code
    "k2jax.bench": lambda name: (ROOT / "k2jax/bench" / f"{name}.py").is_file(),
    "k2jax.reproduce": lambda name: (ROOT / "experiments/reproduce" / f"{name}.py").is_file(),
    "k2jax.aot": lambda name: name == "kernels",
}


SANDBOX = argparse.ArgumentParser(exit_on_error=False)
add_commands(SANDBOX)
PARSERS = {"k2jax.sandbox": SANDBOX}
"""Of commands that argparse reads."""


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def code_of(text):
    """Fenced blocks and inline code of a page, each as (language, text); the language of inline code is None."""
    fence = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    for match in fence.finditer(text):
        yield match[2], match[3]
    for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", fence.sub("", text)):
        yield None, " ".join(match[1].split())


def words_of(code):
    """The words of every ``python -m`` command in some code, without environment variables and redirections."""
    for line in re.sub(r"\\\n\s*", "", code).splitlines():
        for part in re.split(r"&&|\|", line):
            match = COMMAND.search(part)
            if match:
                yield shlex.split(part[match.start() :].split(" > ")[0], comments=True)[2:]


def commands():
    """Every command of pages, of modules' docstrings and of experiments once, with the file where it stands."""
    seen = {}
    for page in PAGES:
        for language, code in code_of(page.read_text()):
            for words in words_of(code) if language in (None, "sh") else ():
                seen.setdefault(tuple(words), page)
    for path in sorted([*ROOT.glob("k2jax/**/*.py"), *ROOT.glob("experiments/*/*.py")]):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        examples = re.sub(r"\\\n\s*", "", docstring).splitlines()
        for words in words_of("\n".join(line for line in examples if line.startswith("    python -m"))):
            seen.setdefault(tuple(words), path)
    return [pytest.param(list(words), id=f"{page.stem}: {' '.join(words)}"[:150]) for words, page in seen.items()]


COMMANDS = commands()
WITH_FLAGS_OF_THEIR_OWN = {("k2jax.rollout", "engine")}
"""Words of commands behind which other flags stand."""


@functools.cache
def parser_of(module, *words):
    """What a command gives to ``cli.run``: its flags and the names of its positional arguments; None without flags."""
    calls = []

    def run(main, define, doc, positional=(), optional=0, remote=(), config_type=Config):
        calls.append((define, doc, positional, optional, config_type))

    with mock.patch.object(cli, "run", run), mock.patch.object(sys, "argv", [module, *words]):
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    return calls[0] if calls else None


def check(words, monkeypatch):
    """Raises where a command names a module, flag, key, file or argument that does not exist; runs nothing."""
    module, *arguments = words
    below = arguments[:1] if tuple(words[:2]) in WITH_FLAGS_OF_THEIR_OWN else []
    parser, arguments = parser_of(module, *below), arguments[len(below) :]
    if parser is None:
        if arguments:
            PARSERS[module].parse_args(arguments)
        return
    define, doc, positional, optional, config_type = parser
    bare = not arguments  # named without arguments, as a command and not as an example
    arguments = [word for word in arguments if word not in ("NAME", "--help", "...", "--config=...")]
    monkeypatch.setattr(sys, "argv", [module, *arguments])  # config_flags looks there for overrides
    omitted = len(positional) if bare or positional else optional
    values, rest = cli.parse(sys.argv, define, doc, positional, omitted, config_type)
    if "config" in values and values.config is not None:
        {Config: cli.config_of, SynthesisConfig: lambda values: resolved(values.config)}[config_type](values)
    if rest and module in ARGUMENTS:
        assert ARGUMENTS[module](rest[0]), f"no {rest[0]} in {module}"


def test_readme_is_short_and_has_the_command_that_ci_runs():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    assert 'pip install -e ".[test]" && pytest' in text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_is_longer_than_a_screen(page):
    assert not [line for line in page.read_text().splitlines() if len(line) > 200]


def anchors(text):
    """Anchors of a page's headings, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def is_api_page(path):
    """Whether the site will have this page of the API reference."""
    parts = path.with_suffix("").relative_to(ROOT / "docs/api").parts
    module = ROOT.joinpath(*(parts[:-1] if parts[-1] == "index" else parts))
    return (module / "__init__.py").is_file() if parts[-1] == "index" else module.with_suffix(".py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page):
    text = page.read_text()
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        generated = path.is_relative_to(ROOT / "docs/api") and not path.exists()
        assert is_api_page(path) if generated else path.is_file(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{file} has no section #{anchor}"


def test_examples_of_docstrings_have_one_command_a_line():
    for path in sorted([*ROOT.glob("k2jax/**/*.py"), *ROOT.glob("experiments/*/*.py")]):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        for line in docstring.splitlines():
            assert not re.search(r"python( -m)?$|\S {6,}--|^ {4}\S.*[^`\w]python -m k2jax", line), (
                f"{path.name}: {line}"
            )


def test_commands_are_found():
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("words", COMMANDS)
def test_documented_commands_name_what_exists(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    check(words, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        "k2jax.trian --workdir=runs/nano",
        "k2jax.train --work_dir=runs/nano",
        "k2jax.train --config=experiments/pretrain/nano.py --config.train.step=2",
        "k2jax.train --config=experiments/pretrain/mano.py",
        "k2jax.train --config=experiments/pretrain/nano.py --config.parallel.stage=two",
        "k2jax.bench expert",
        "k2jax.reproduce qk_clop --workdir=runs/x",
    ],
)
def test_wrong_commands_are_noticed(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises((UserError, ImportError, AssertionError)):
        check(shlex.split(command), monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_keys_exist(page):
    known = {key.path for key in keys()}
    known |= {path.rsplit(".", depth)[0] for path in known for depth in range(1, path.count(".") + 1)}
    for _, code in code_of(page.read_text()):
        name = re.sub(r"^config\.", "", code.partition("=")[0])
        name = re.sub(r"^(data\.sources|rl\.tasks)\.(?!NAME)\w+", r"\1.NAME", name)
        if KEY.fullmatch(name) and not NO_KEY.fullmatch(name):
            assert name in known, f"no key {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_imports_of_examples_exist(page):
    for language, code in code_of(page.read_text()):
        for node in ast.walk(ast.parse(code)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_objects_and_files_exist(page):
    for _, code in code_of(page.read_text()):
        if re.fullmatch(r"(?:k2jax|pallas_kernels|experiments|tests|notebooks|docs)/[\w./]+", code):
            assert (ROOT / code).exists(), f"{code} does not exist"
        elif re.fullmatch(r"(?:k2jax|pallas_kernels)(?:\.\w+)+", code):
            pkgutil.resolve_name(code)


def test_the_picture_of_the_floors_is_that_of_the_import_rules():
    script = runpy.run_path(str(ROOT / "docs/hooks/architecture_picture.py"))
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    packages = {name for layer in layers for name in re.findall(r"\w+", layer)}
    committed = (ROOT / "docs/architecture.svg").read_text()
    assert all(f">{name}</text>" in committed for name in packages)
    kernels = {path.parent.name for path in ROOT.glob("pallas_kernels/*/__init__.py")}
    assert set(script["KERNELS"]) == kernels
    assert script["picture"]() == committed, "python docs/hooks/architecture_picture.py > docs/architecture.svg"
    unexplained = packages - script["PURPOSES"].keys()
    assert not unexplained, f"architecture_picture.py says nothing of {unexplained}"


def test_the_table_of_activations_is_that_of_kimi_k2():
    config = defaults("pretrain", model="k2")
    config.train.remat = "selective"
    assert activation_table(resolve(config)) in (ROOT / "docs/activations.md").read_text()


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES[1:]:
        assert f": {page.relative_to(ROOT / 'docs')}" in nav or page.parent.name == "api", f"{page.name} is not in nav"
