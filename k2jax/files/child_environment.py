"""The environment of helper processes: what programs need to run, and none of this process's keys."""

from __future__ import annotations

from collections.abc import Iterable
import os
import re

_NAMES = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TEMP", "TMP"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "K2JAX_CACHE"),
}
_BEGINNINGS = ("LC_", "PYTHON", "XDG_", "HF_", "NLTK_", "CUDA_", "COVERAGE_")
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")


def child_environment(more: Iterable[str] = ()) -> dict[str, str]:
    """Variables of this process that a helper gets: those that say where things are.

    Args:
        more: names of further ones, whatever they hold.
    """
    named = set(more)
    return {name: value for name, value in os.environ.items() if name in named or _is_plain(name)}


def _is_plain(name: str) -> bool:
    return (name in _NAMES or name.startswith(_BEGINNINGS)) and not _SECRET.search(name)
