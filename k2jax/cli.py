"""Command lines: flags, overrides of configuration keys, and one-line errors with exit code 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import errno
from logging import FATAL, getLogger
import os
from pathlib import Path
import re
import select
import signal
import sys
from typing import Any
import warnings

from absl import flags, logging
from ml_collections import config_flags

from k2jax.config.reference import keys, reference_text
from k2jax.config.schema import Config
from k2jax.errors import UserError, abbreviate, nearest
from k2jax.files.local import check_local

USER_ERROR = 2
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors of a full disk: nothing is wrong with the program, and what was saved before stays."""
NO_ACCESS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
"""Numbers of errors that only the user can mend who named the file: of its permissions, or of its path."""
CLOSED_PIPE = 128 + signal.SIGPIPE
"""What a shell gives for a program that wrote into a closed pipe, as ``COMMAND | head -1`` makes them do."""
PATHS = (
    "against", "api_keys_file", "attributes", "cache_dir", "checkpoint", "compare", "data", "documents", "folder",
    "images", "include_path", "of", "out", "pairs", "preferences", "published_key", "replay", "repositories",
    "rubrics", "to", "tokenizer", "workdir",
)  # fmt: skip
"""Names of the flags of all commands that name files or folders."""


def run(
    main: Callable[..., int | None],
    define: Callable[[flags.FlagValues], None],
    doc: str,
    positional: tuple[str, ...] = (),
    optional: int = 0,
    remote: tuple[str, ...] = (),
    *,
    config_type: type = Config,
) -> None:
    """Parses the command line, runs ``main`` and exits with its code.

    Args:
        main: receives the parsed flags and one string per positional argument; returns the exit code, or None for 0.
        define: adds the command's flags to its argument.
        doc: printed by ``--help``, above the flags.
        positional: names of the arguments that are not flags.
        optional: number of positional arguments, from the last, that may be omitted.
        remote: names among ``PATHS`` and ``positional`` that this command takes as URLs.
        config_type: of what ``--config`` names, a dataclass whose fields are the keys.
    """
    # Orbax and grain report every routine step through absl, and a failed save in hundreds of lines before it raises.
    logging.set_verbosity(logging.FATAL)
    # Of the arrays of a checkpoint that fail, orbax raises the first; the others are reported when they are forgotten.
    sys.unraisablehook = _report_unraisable
    getLogger("asyncio").setLevel(FATAL)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited")
    try:
        values, arguments = parse(sys.argv, define, doc, positional, optional, config_type)
        _check_paths(values, arguments, positional, remote)
        code = main(values, *arguments) or 0
        sys.stdout.flush()  # where it could not be written, this is the place to say so
        sys.exit(code)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _forget_closed_outputs():
            sys.exit(CLOSED_PIPE)
        if not (line := _of_the_user(error)):
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(USER_ERROR)


def _of_the_user(error: OSError) -> str:
    """The line about an error of the system that is no fault of the program; empty for all others."""
    if error.errno in NO_ROOM:
        return f"{error.filename or 'a file'} cannot be written: {error.strerror}; make room"
    return f"{error.filename}: {error.strerror}" if error.errno in NO_ACCESS and error.filename else ""


def _forget_closed_outputs() -> bool:
    """Whether nobody reads an output any more; what is left to write to it goes nowhere, without another error."""
    closed = []
    for descriptor in (1, 2):
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            closed.append(descriptor)
    for descriptor in closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return bool(closed)


_ABANDONED = ("Event loop is closed", "Encountered error while reading array index")


def _report_unraisable(unraisable: Any) -> None:
    if not str(unraisable.exc_value).startswith(_ABANDONED):
        sys.__unraisablehook__(unraisable)


def define_config(values: flags.FlagValues) -> None:
    """Adds ``--config=FILE.py`` with its ``--config.a.b=value`` overrides."""
    config_flags.DEFINE_config_file(
        "config", None, "Experiment file, e.g. experiments/pretrain/nano.py.", flag_values=values
    )


def parse(
    argv: Sequence[str],
    define: Callable[[flags.FlagValues], None],
    doc: str,
    positional: tuple[str, ...] = (),
    optional: int = 0,
    config_type: type = Config,
) -> tuple[flags.FlagValues, list[str]]:
    """Parses ``argv`` (program name first) into flags and positional arguments.

    Raises:
        UserError: an unknown flag or key, a value of the wrong type, a missing file, or bytes that are no text.
    """
    for number, argument in enumerate(argv):
        if not _is_text(argument):
            raise UserError(f"argument {number}, {abbreviate(os.fsencode(argument))}, is not UTF-8")
    values = flags.FlagValues()
    define(values)
    if any(arg in ("-h", "--help") for arg in argv[1:]):
        print(f"{doc.strip()}\n\nFlags:\n{values.get_help()}")
        if "config" in values:
            print(f"\nConfig keys, each overridden by --config.KEY=VALUE:\n\n{reference_text(config_type)}")
        sys.stdout.flush()
        sys.exit(0)
    _check_config_file(argv)
    argv, emptied = _check_overrides(argv, config_type)
    try:
        rest = values(list(argv))
        if "config" in values and values.config is not None:  # reading it loads the file
            values.config.update_from_flattened_dict(emptied)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(_explain(error, values)) from error
    arguments = rest[1:]
    if len(arguments) > len(positional):
        raise UserError(f"unexpected argument {arguments[len(positional)]!r}; flags are written --name=value")
    if len(arguments) < len(positional) - optional:
        raise UserError(f"{positional[len(arguments)]} is missing; --help shows an example")
    return values, arguments


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:  # Python keeps other bytes as halves of surrogate pairs
        return False
    return True


def require(values: flags.FlagValues, *names: str) -> None:
    """Raises UserError for a missing flag."""
    for name in names:
        if values[name].value is None:
            raise UserError(f"--{name} is required; --help shows an example")


def _check_paths(values: flags.FlagValues, arguments: Sequence[str], positional: Sequence[str], remote: Sequence[str]):
    """Rejects URLs in the place of files and folders, which would be folders with the name ``gs:``."""
    for name in PATHS:
        if name in values and name not in remote and values[name].value:
            of_flag = values[name].value
            for text in of_flag if isinstance(of_flag, list) else [of_flag]:
                if isinstance(text, str):  # of another command the name may be that of a number
                    check_local(text, f"--{name}")
    for name, text in zip(positional, arguments, strict=False):
        if name not in remote:
            check_local(text, name)


def _check_config_file(argv: Sequence[str]) -> None:
    for i, arg in enumerate(argv):
        match = re.fullmatch(r"--?config(?:=(.*))?", arg)
        if match is None:
            continue
        path = match[1] if match[1] is not None else argv[i + 1] if i + 1 < len(argv) else ""
        path = path.split(":")[0]
        if not os.path.isfile(path):
            raise UserError(f"no config file {path!r}{_experiments_beside(path)}")


def _experiments_beside(path: str) -> str:
    """The end of a message: the experiment in the same folder that is meant, or where there are some."""
    folder = Path(path).parent
    files = [file for file in folder.glob("*.py") if "def get_config" in file.read_text(errors="replace")]
    if not files:
        return "; experiments/ of the repository holds some"
    return nearest(Path(path).stem, sorted(file.stem for file in files), ending=".py")


def _check_overrides(argv: Sequence[str], config_type: type) -> tuple[list[str], dict[str, None]]:
    """Rejects unknown ``--config.KEY`` flags and removes ``KEY=None``, which config_flags cannot parse."""
    declared = {key.path: key for key in keys(config_type)}
    rest, emptied = [], {}
    for arg in argv:
        match = re.match(r"--?config\.([^=]+)(?:=(.*))?$", arg, re.DOTALL)
        if match is None:
            rest.append(arg)
            continue
        path = re.sub(r"^(data\.sources|rl\.tasks|phases|models)\.[^.]+\.", r"\1.NAME.", match[1])
        if path not in declared:
            raise UserError(f"unknown key config.{match[1]}{nearest(path, list(declared))}")
        if match[2] == "None" and "None" in declared[path].type:
            emptied[match[1]] = None
        else:
            rest.append(arg)
    return rest, emptied


def _explain(error: Exception, values: flags.FlagValues) -> str:
    """Words an error of absl or config_flags in one line."""
    text = " ".join(str(error.args[0] if error.args else error).split())
    if isinstance(error, KeyError):
        return f"unknown config key {text}"
    if unknown := re.search(r"Unknown command line flag '([^']+)'", text):
        return f"unknown flag --{unknown[1]}{_suggestion(unknown[1], values)}"
    return re.sub(r" Other fields present: .*?(?=Did you mean|$)", " ", text).strip("'\" ")


def _suggestion(name: str, values: flags.FlagValues) -> str:
    """The flag that is meant, or the one key of the config that ends in its name; not those of NAME's own settings."""
    paths = [key.path.split(".") for key in keys()] if "config" in values else []
    keys_named = [".".join(path) for path in paths if path[-1] == name and "NAME" not in path]
    if len(keys_named) == 1:
        return f"; did you mean '--config.{keys_named[0]}'?"
    return nearest(name, list(values))


def config_of(values: flags.FlagValues) -> Any:
    """Resolves ``--config`` and its overrides to a ``schema.Config``."""
    from k2jax.config import resolve

    return resolve(values.config)
