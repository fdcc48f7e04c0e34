"""Runs commands inside the tests' process, which has imported already what a new process takes seconds to import."""

import contextlib
import io
import os
from pathlib import Path
import runpy
import subprocess
import sys
from unittest import mock
import warnings

ROOT = Path(__file__).parents[1]


def run_command(
    module: str, *words: str | bytes, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Exit code and output of ``python -m MODULE WORDS``, run in this process.

    A property of the process itself (signals, its start, what it leaves behind) needs a real one; every command has a
    test that starts one.
    """
    stdout, stderr, argv = io.StringIO(), io.StringIO(), [module, *map(os.fsdecode, words)]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, environment),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "'.*' found in sys.modules after import of package")
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(argv, code, stdout.getvalue(), stderr.getvalue())
