"""Parse properties files as Java's `Properties.load` does: the format of Kafka's tools and of `${file:…}`."""

from __future__ import annotations

import re

ENCODING = "latin-1"
"""Java's encoding of the file; other characters are written as `\\uXXXX`."""

_COMMENT_OR_BLANK = re.compile(r"[ \t\f]*([#!].*)?")
_CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")
# The name ends at the first =, : or blank without a backslash before it.
_PAIR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_java_properties(text: str) -> dict[str, str]:
    """Parse a file's text into names and values. The last of duplicate names wins; every text is valid."""
    found: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        if _COMMENT_OR_BLANK.fullmatch(line):
            continue
        while _CONTINUES.search(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        pair = _PAIR.match(line.lstrip(" \t\f"))
        assert pair is not None, "it matches any text"
        found[_unescaped(pair[1])] = _unescaped(pair[2])
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _CONTROLS.get(match[2], match[2]), text)
