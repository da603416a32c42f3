"""External values: resolve `${env:NAME}`, `${file:PATH:KEY}` and `${dir:PATH:FILE}`, as Kafka's config providers do.

A reference is resolved by the process that connects to a broker, each time it connects. The secret is therefore in no
query plan, event log or pickled task, and a changed file takes effect with the next connection.

Files have the format of Java's `Properties.load`, which Kafka's tools use.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from protocol.errors import ConfigurationError

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
    properties: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        if _COMMENT_OR_BLANK.fullmatch(line):
            continue
        while _CONTINUES.search(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        pair = _PAIR.match(line.lstrip(" \t\f"))
        assert pair is not None, "it matches any text"
        properties[_unescaped(pair[1])] = _unescaped(pair[2])
    return properties


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _CONTROLS.get(match[2], match[2]), text)
    # Java writes a character above U+FFFF as two escapes, a surrogate pair.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


# Text with another provider, or with none, remains as given: it may be a password.
_REFERENCE = re.compile(r"\$\{(?:(?P<env>env):(?P<name>[^:}]+)|(?P<kind>file|dir):(?P<path>[^:}]+):(?P<key>[^:}]+))\}")


def is_reference(text: str) -> bool:
    """Return True if the whole text is one reference."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def has_reference(text: str) -> bool:
    """Return True if a part of the text is a reference."""
    return _REFERENCE.search(text) is not None


def resolve_references(text: str) -> str:
    """Replace the references in a text by their values. Raises `ConfigurationError` for a missing value."""
    return _REFERENCE.sub(_lookup, text)


def _lookup(match: re.Match[str]) -> str:
    try:
        if match["env"]:
            # os.environ would raise an error that contains the whole value if a byte is not UTF-8.
            return os.environb[os.fsencode(match["name"])].decode("utf-8")
        if match["kind"] == "dir":
            return _read_mounted_file(Path(match["path"]), match["key"])
        text = parse_java_properties(Path(match["path"]).read_text(ENCODING))[match["key"]]
        text.encode()  # a later error about a half of a surrogate pair would contain the whole secret
        return text
    except KeyError:
        why = "there is no such name in " + ("this process's environment" if match["env"] else "that file")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
    # Raised outside of `except`: decoding errors contain the data read, and would become this error's context.
    raise ConfigurationError(f"{match[0]} cannot be resolved: {why}. References are resolved when a connection opens.")


def _read_mounted_file(folder: Path, name: str) -> str:
    """Read a secret that an orchestrator has mounted as a file; without line breaks at the end, which editors add."""
    if Path(name).name != name:
        raise OSError(0, "the file name must not contain a path")
    return (folder / name).read_text("utf-8").rstrip("\r\n")
