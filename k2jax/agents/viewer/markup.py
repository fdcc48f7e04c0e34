"""HTML of text that nobody trusts: everything is escaped but what ``element`` has made.

A page loads nothing and runs nothing: its policy (Content-Security-Policy) allows one style sheet, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
import unicodedata

_VOID = ("meta", "input", "br")


class Html(str):
    """Text that is HTML already; ``element`` and ``joined`` alone make it."""

    __slots__ = ()


def visible(text: object) -> str:
    """A value as text in which no character hides or turns others around.

    Control characters get their pictures (U+2400 and following), others that have no shape of their own their number:
    marks of direction, zero-width characters, half surrogate pairs. Line breaks and tabs stay.
    """
    return "".join(character if character in "\n\t" else _shape(character) for character in str(text))


def _shape(character: str) -> str:
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + code if code < 0x20 else 0x2421)
    if code < 0x7F or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return f"\\u{{{code:x}}}"


def joined(parts: object) -> Html:
    """The children of an element one after another; what is not HTML is escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(visible(part)) for part in parts))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        name: of the tag; always written in the program.
        children: HTML, or values whose text is escaped.
        attributes: by name, ``_`` at the end removed and others turned into ``-``; None leaves one out, True gives
            its bare name.
    """
    written = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(key)
        elif value is not None:
            written.append(f'{key}="{escape(visible(value))}"')
    start = f"<{' '.join(written)}>"
    return Html(start if name in _VOID else f"{start}{joined(children)}</{name}>")


def document(title: str, style: str, *body: Html) -> Html:
    """A whole page, which may use one style sheet and no script, picture, font, frame, form or address.

    Args:
        title: of the page.
        style: its style sheet, always written in the program.
        body: its elements.
    """
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        Html(f"<style>{style}</style>"),
    )
    return Html(f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n")
