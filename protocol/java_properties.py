"""A file of properties as Java's `Properties.load` reads it: what Kafka's own tools and `${file:…}` take. Pure."""

from __future__ import annotations

import re

ENCODING = "latin-1"
"""Java's; other characters stand there as `\\uXXXX`."""

_COMMENT_OR_BLANK = re.compile(r"[ \t\f]*([#!].*)?")
_CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")
# The name ends at the first =, : or blank that no backslash is before.
_PAIR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_java_properties(text: str) -> dict[str, str]:
    """Name -> value; of a name that stands there twice the last one. Nothing is wrong: any text is some properties."""
    found: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        if _COMMENT_OR_BLANK.fullmatch(line):
            continue
        while _CONTINUES.search(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        pair = _PAIR.match(line.lstrip(" \t\f"))
        assert pair is not None, "it matches whatever there is"
        found[_unescaped(pair[1])] = _unescaped(pair[2])
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _CONTROLS.get(match[2], match[2]), text)
