"""Manifests as YAML that all parsers read the same way."""

from __future__ import annotations

import re
from typing import Any

import yaml

PLAIN_TEXT = r"[A-Za-z][A-Za-z0-9._/-]*"
AMBIGUOUS_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Words that some version of YAML reads as a boolean or null."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False):
        return super().increase_indent(flow, False)  # lists are indented below their key

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(PLAIN_TEXT, text) and text.lower() not in AMBIGUOUS_WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def dump(manifest: Any) -> str:
    """Returns dictionaries, lists, numbers and text as YAML, in their order.

    Text is quoted unless it is a plain word. PyYAML would not quote ``1e3``, which kubectl's parser reads as a number.
    """
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=float("inf"))
