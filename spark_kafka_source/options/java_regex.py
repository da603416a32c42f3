"""A regular expression as Java reads it, made into one that Python reads alike.

`subscribePattern` is Java's syntax in Spark's own connector. Most of it is Python's too; what is spelled otherwise is
translated, and what Python would take to mean something else is refused, never guessed.
Topic names are ASCII, so Java's classes of characters are narrowed to that. Pure; used by `start_positions`.
"""

from __future__ import annotations

import re
import warnings

DIFFERENCES = """\
The syntax is Java's (`java.util.regex.Pattern`). Translated: named groups `(?<n>...)` and `\\k<n>`, quoting
`\\Q...\\E`, `\\z` and `\\Z`, `\\h`, and classes such as `\\p{Alpha}` or `\\p{Lu}` (narrowed to ASCII, as topic names
are). Refused with an error: unions and intersections in a class (`[a[bc]]`, `[a-z&&[^b]]`), negated `\\P{...}` in a
class, the flags `d`, `u`, `U` and `x`, flags that begin in the middle (`a(?i)b`; write `a(?i:b)`), and the escapes
`\\G`, `\\R`, `\\X`, `\\H`, `\\v`, `\\V`, `\\N`, `\\e`, `\\c` and `\\0`. Possessive quantifiers and atomic groups need
Python 3.11."""

_PUNCTUATION = r"!-\/:-@\[-`{-~"
_CLASSES = {
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Lower": "a-z",
    "Upper": "A-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "XDigit": "0-9a-fA-F",
    "Punct": _PUNCTUATION,
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Space": r"\s",
    "Cntrl": r"\x00-\x1f\x7f",
    "L": "a-zA-Z",
    "Ll": "a-z",
    "Lu": "A-Z",
    "N": "0-9",
    "Nd": "0-9",
    "IsAlphabetic": "a-zA-Z",
    "IsLowercase": "a-z",
    "IsUppercase": "A-Z",
    "IsDigit": "0-9",
}
_PROPERTY = re.compile(r"\\([pP])(?:\{(\w+)\}|(\w))")
_FLAGS = re.compile(r"\(\?([a-zA-Z-]+)[:)]")
_QUANTIFIER = re.compile(r"\{\d+(?:,\d*)?\}")
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_BACK_REFERENCE = re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>")
_HEX = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
# Escapes that mean the same in both, for ASCII text; in a class, without the anchors.
_SAME = frozenset("dDwWsSbBAtnrfa123456789")
_SAME_IN_CLASS = frozenset("dDwWsStnrfa")


def compile_java(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled for Python. Raises `ValueError` that says what is wrong, or not supported, and where."""
    text = _Translation(pattern).run()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(text, re.ASCII)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise ValueError(f"{error}") from error


class _Translation:
    """One pass over the pattern, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def run(self) -> str:
        out = []
        while self._at < len(self._pattern):
            out.append(self._next())
        return "".join(out)

    def _next(self) -> str:
        char = self._pattern[self._at]
        if char == "\\":
            return self._escape(in_class=False)
        if char == "[":
            return self._class()
        if char == "(":
            return self._group()
        if char == "{":
            quantifier = _QUANTIFIER.match(self._pattern, self._at)
            if not quantifier:
                raise self._refuse("'{' without a count; write \\{ for the character")
            return self._take(len(quantifier[0]))
        return self._take(1)

    def _group(self) -> str:
        named = _NAMED_GROUP.match(self._pattern, self._at)
        if named:
            self._take(len(named[0]))
            return f"(?P<{named[1]}>"
        if self._pattern.startswith(("(?P", "(?(", "(?#"), self._at):
            raise self._refuse("a group that Java does not have")
        flags = _FLAGS.match(self._pattern, self._at)
        if flags:
            if set(flags[1]) - set("ims-"):
                raise self._refuse(f"the flags {flags[1]!r}")
            if flags[0].endswith(")") and self._at:
                raise self._refuse(f"flags that begin in the middle; write (?{flags[1]}:...)")
            return self._take(len(flags[0]))
        return self._take(1)

    def _class(self) -> str:
        out = [self._take(2 if self._pattern.startswith("[^", self._at) else 1)]
        if self._pattern.startswith("]", self._at):
            raise self._refuse("']' right after '['; write \\] for the character")
        while not self._pattern.startswith("]", self._at):
            if self._at >= len(self._pattern):
                raise self._refuse("a class without its ']'")
            if self._pattern.startswith(("[", "&&"), self._at):
                raise self._refuse("a union or intersection of classes")
            char = self._pattern[self._at]
            if char == "\\":
                out.append(self._escape(in_class=True))
            else:
                # Doubled, these would look like set operations to Python.
                out.append("\\" * (char in "&~|") + self._take(1))
        return "".join(out) + self._take(1)

    def _escape(self, *, in_class: bool) -> str:
        char = self._pattern[self._at + 1 : self._at + 2]
        if char == "Q":
            return self._quoted()
        if char in ("p", "P"):
            return self._property(in_class=in_class)
        if char in ("x", "u"):
            code = _HEX.match(self._pattern, self._at)
            if not code:
                raise self._refuse(f"\\{char} without its digits")
            return self._take(len(code[0]))
        if char == "h":
            self._take(2)
            return r" \t" if in_class else r"[ \t]"
        if not in_class:
            if char in ("z", "Z"):
                self._take(2)
                return r"\Z"
            reference = _BACK_REFERENCE.match(self._pattern, self._at)
            if reference:
                self._take(len(reference[0]))
                return f"(?P={reference[1]})"
        same = _SAME_IN_CLASS if in_class else _SAME
        if not char or (char.isalnum() and char not in same) or self._pattern.startswith("\\b{", self._at):
            raise self._refuse(f"the escape \\{char}")
        return self._take(2)

    def _property(self, *, in_class: bool) -> str:
        found = _PROPERTY.match(self._pattern, self._at)
        members = _CLASSES.get(found[2] or found[3]) if found else None
        if not found or members is None:
            raise self._refuse("a class of characters that is not known here")
        if not in_class:
            self._take(len(found[0]))
            return f"[{'^' if found[1] == 'P' else ''}{members}]"
        if found[1] == "P":
            raise self._refuse("\\P in a class")
        self._take(len(found[0]))
        return members

    def _quoted(self) -> str:
        end = self._pattern.find("\\E", self._at)
        end = len(self._pattern) if end < 0 else end
        literal = self._pattern[self._at + 2 : end]
        self._at = min(end + 2, len(self._pattern))
        return re.escape(literal)

    def _take(self, count: int) -> str:
        taken = self._pattern[self._at : self._at + count]
        self._at += count
        return taken

    def _refuse(self, what: str) -> ValueError:
        return ValueError(f"not supported at character {self._at + 1}: {what}")
