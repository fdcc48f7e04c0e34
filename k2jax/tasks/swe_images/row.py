"""A row of SWE-bench's form whose repository is on an image: what of it can be run here, and what is refused by name.

The fields are those of SWE-bench (Verified, Multilingual), SWE-Gym, SWE-rebench (V2) and SWE-bench-Live.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.tasks.swe_images.log_parsers import parser_for, parser_named
from k2jax.tasks.swe_images.row_commands import default_command

_MOST_TEXT = 8 << 20
"""Characters of a statement, a patch or a command."""
_MOST_TESTS = 100_000
_LONGEST_NAME = 4096
_MOST_VARIABLES = 200
_IMAGES = ("image_name", "docker_image", "image")
_ID = re.compile(r"[0-9a-f]{40}")
_INSTANCE = re.compile(r"[\w.@+-]{1,200}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVICES = re.compile(
    r"(?:^|[;&|(])[ \t]*(?:sudo[ \t]+)?(docker|docker-compose|podman|systemctl|service)[ \t]", re.MULTILINE
)
_UNSUPPORTED = {
    "before_repo_set_cmd": "a command before its tests that sets the repository up",
    "image_assets": "files that are fetched from other machines",
    "services": "services beside its tests",
    "docker_compose": "services beside its tests",
    "parser": "a program that reads its log",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SWERow:
    """A row that can be run.

    Attributes:
        name: of the row.
        image: its name.
        base: id of the commit that the agent begins with.
        workdir: folder of the repository; empty where the row does not say it.
        env: variables of all commands.
        statement: the issue.
        patch: the reference solution; empty for none.
        test_patch: what brings the tests.
        fail_to_pass: names of tests that the solution makes pass.
        pass_to_pass: names of tests that pass before and after.
        build: commands before the tests.
        tests: commands that run the tests.
        report: commands that print what the tests have written; empty where they print it themselves.
        parser: of the log, see ``log_parsers``.
        seconds: wall time of all commands; 0 where the row does not say it.
        marked: whether the log is only what stands between SWE-bench's own marks.
    """

    name: str
    image: str
    base: str
    workdir: str
    env: Mapping[str, str]
    statement: str
    patch: str
    test_patch: str
    fail_to_pass: list[str]
    pass_to_pass: list[str]
    build: str
    tests: str
    report: str
    parser: str
    seconds: float
    marked: bool


def read_row(record: Mapping[str, Any], image: str) -> SWERow:
    """Reads a row.

    Args:
        record: its fields.
        image: name of the image of a row that names none; ``{id}`` in it is the row's name in lower case, with
            ``_1776_`` for two underscores.

    Raises:
        UserError: it is no row, or asks for what sandboxes here do not have; the message names the field.
    """
    return _Reader(record).row(image)


class _Reader:
    def __init__(self, record: Mapping[str, Any]):
        self._record = record
        config = record.get("install_config")
        if isinstance(config, str) and config.strip():
            config = self._json("install_config", config)
        self._config: Mapping[str, Any] = config if isinstance(config, dict) else {}

    def row(self, image: str) -> SWERow:
        record = self._record
        self._refuse()
        name = self._text("instance_id")
        if not _INSTANCE.fullmatch(name):
            raise UserError(f"instance_id is {abbreviate(name)}, which is no name of a row")
        fail_to_pass, pass_to_pass = self._names("FAIL_TO_PASS"), self._names("PASS_TO_PASS")
        test_patch = self._patch("test_patch")
        if not fail_to_pass:
            raise UserError("FAIL_TO_PASS is empty, so that nothing shows a solution")
        base = self._text("base_commit")
        if not _ID.fullmatch(base):
            what = "which a row needs; of SWE-smith's rows take the commit of the image, with the bug in it"
            raise UserError(f"base_commit is {abbreviate(base)}, which is no full id of a commit, {what}")
        tests, build, report = self._commands("test_cmd", "test_cmds"), self._commands("rebuild_cmds"), ""
        script, language = self._text("eval_script"), self._text("language") or self._text("repo_language")
        if script:
            tests, build = script, ""
        elif tests:
            report = self._commands("print_cmds")
        else:
            tests = default_command(self._text("repo"), language, test_patch, [*fail_to_pass, *pass_to_pass])
        commands = "\n".join((build, tests, report))
        if found := _SERVICES.search(commands.replace(test_patch.strip(), "") if test_patch.strip() else commands):
            raise UserError(f"its commands start {found[1]}, which sandboxes here do not have")
        return SWERow(
            name=name,
            image=self._image(name, image),
            base=base,
            workdir=self._workdir(),
            env=self._env(),
            statement=self._text("problem_statement", needed=True),
            patch=self._patch("patch"),
            test_patch=test_patch,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
            build=build,
            tests=tests,
            report=report,
            parser=self._parser(tests, language or "python"),
            seconds=self._seconds(record.get("timeout") or record.get("test_timeout") or 0),
            marked=bool(script),
        )

    def _refuse(self) -> None:
        for key, what in _UNSUPPORTED.items():
            if self._record.get(key) not in (None, "", "{}", "[]", [], {}):
                raise UserError(f"it asks for {what} ({key}), which is not supported")
        if self._record.get("eval_type") not in (None, "", "pass_and_fail"):
            raise UserError(
                f"its eval_type is {abbreviate(self._record['eval_type'])}: tests would pass that are not in its log"
            )
        if str(self._record.get("platform") or "linux")[:20].lower() != "linux":
            raise UserError("its platform is another one than Linux")

    def _parser(self, tests: str, language: str) -> str:
        name = self._text("log_parser") or self._config.get("log_parser") or ""
        if not name:
            return parser_for(tests, language)
        kind = parser_named(name) if isinstance(name, str) and len(name) < 100 else ""
        if not kind:
            what = "is a program, and no program of a row runs here" if "\n" in str(name) else "is unknown"
            raise UserError(f"its log_parser {abbreviate(name)} {what}")
        return kind

    def _image(self, name: str, image: str) -> str:
        for key in _IMAGES:
            if text := self._text(key):
                return text.removeprefix("docker.io/")
        if not image:
            raise UserError(f"it names no image ({', '.join(_IMAGES)}); name those of all rows by the option image")
        return image.replace("{id}", name.lower().replace("__", "_1776_"))

    def _workdir(self) -> str:
        folder = self._text("workdir")
        if folder and (not folder.startswith("/") or ".." in folder.split("/") or not folder.isprintable()):
            raise UserError(f"workdir is {abbreviate(folder)}, which is no absolute path")
        return folder.rstrip("/")

    def _env(self) -> dict[str, str]:
        env = self._record.get("env") or {}
        env = self._json("env", env) if isinstance(env, str) else env
        if not isinstance(env, dict) or len(env) > _MOST_VARIABLES:
            raise UserError("env is no table of variables")
        for key, value in env.items():
            if not _VARIABLE.fullmatch(key) or not isinstance(value, str) or "\0" in value or len(value) > 1 << 16:
                raise UserError(f"env has {abbreviate(key)}, which is no variable with a text")
        return env

    def _seconds(self, value: Any) -> float:
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise UserError(f"timeout is {abbreviate(value)}, which is no number of seconds")
        return float(value)

    def _commands(self, *keys: str) -> str:
        """Commands of the first of some fields that the row or its ``install_config`` has, one a line."""
        for key in keys:
            value = self._record.get(key) or self._config.get(key) or ""
            lines = value if isinstance(value, list) else [value]
            if not all(isinstance(line, str) and "\0" not in line for line in lines):
                raise UserError(f"{key} is {abbreviate(value)}, which is no command")
            if text := "\n".join(lines).strip():
                return self._bounded(key, text)
        return ""

    def _patch(self, key: str) -> str:
        text = self._text(key)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"{key} has half surrogates in the place of bytes that are not UTF-8") from None
        return text if not text or text.endswith("\n") else f"{text}\n"

    def _text(self, key: str, needed: bool = False) -> str:
        value = self._record.get(key) or ""
        if not isinstance(value, str) or (needed and not value.strip()):
            raise UserError(f"{key} is {abbreviate(value)}, which is no text")
        return self._bounded(key, value)

    def _bounded(self, key: str, text: str) -> str:
        if len(text) > _MOST_TEXT:
            raise UserError(f"{key} has more than {_MOST_TEXT:,} characters")
        return text

    def _names(self, key: str) -> list[str]:
        value = self._record.get(key)
        if value is None:
            raise UserError(f"it has no {key}")
        value = self._json(key, value) if isinstance(value, str) else value
        if not isinstance(value, list) or len(value) > _MOST_TESTS:
            raise UserError(f"{key} is no list of up to {_MOST_TESTS:,} tests")
        for name in value:
            if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
                raise UserError(f"{key} has {abbreviate(name)}, which is no name of a test")
        return value

    def _json(self, key: str, text: str) -> Any:
        try:
            return parse_bounded_json(self._bounded(key, text))
        except ValueError as error:
            raise UserError(f"{key} is no JSON: {abbreviate(str(error))}") from None
