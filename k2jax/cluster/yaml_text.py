"""Manifests as YAML that every parser reads alike."""

from __future__ import annotations

import re
from typing import Any

import yaml

PLAIN = r"[A-Za-z][A-Za-z0-9._/-]*"
WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""What one version of YAML or another takes for something else than text."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False):
        return super().increase_indent(flow, False)  # lists stand below their key, indented

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(PLAIN, text) and text.lower() not in WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def dump(manifest: Any) -> str:
    """Dictionaries, lists, numbers and text as YAML, in the order given.

    Text is quoted unless it is a plain word: kubectl's parser reads ``1e3`` as a number, which PyYAML would not quote.
    """
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=float("inf"))
