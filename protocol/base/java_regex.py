"""Regular expressions with the same meaning in Java and Python.

In Spark's own connector, `subscribePattern` has Java's syntax, as `RLIKE` has. This module refuses every construct
that Python reads differently. Topic names are ASCII without white space; for other texts, `.` and `$` are translated.
Pure; used by `selection` and `protocol.filters`.
"""

from __future__ import annotations

import re

DIFFERENCES = """\
The syntax is what Java (`java.util.regex.Pattern`) and Python read alike: characters, `.`, classes (`[a-z]`, `[^0-9]`),
`\\d`, `\\w`, `\\s` and their opposites, groups, alternatives, quantifiers, look-ahead and look-behind, `^`, `$`, `\\A`,
`\\Z`, `\\b`, `\\B`, back references by number, and the flags `i`, `m` and `s`, at the beginning or in `(?i:...)`. The
rest is an error, although Spark's own connector accepts it: write `[a-z]` for `\\p{Lower}`, `(...)` and `\\1` for
`(?<n>...)` and `\\k<n>`, `a\\.b` for `\\Qa.b\\E`, `\\Z` for `\\z`, and `[abc]` for `[a[bc]]`. Possessive
quantifiers and atomic groups need Python 3.11."""

# Java's `.` and `$` know more line terminators than Python's.
_FOR_ANY_TEXT = {
    ".": "[^\\n\\r\\x85\\u2028\\u2029]",
    "$": "(?:(?=\\r\\n\\Z)|(?=[\\r\\x85\\u2028\\u2029]\\Z)|(?<!\\r)(?=\\n\\Z)|\\Z)",
}
# What has another meaning in Java for some texts: word boundaries, the end, and flags that change `.`, `^` and `$`.
_FOR_NAMES_ONLY = re.compile(r"\\[bBZ]|\(\?[ims]*m|\(\?i*s[is]*:|\(\?[ims]*-")

# One construct with the same meaning in both languages, for topic names. Python reserves `--` in classes.
_ALIKE = re.compile(
    r"""
      \A\(\?[ims]+\)                                       # flags for the whole pattern
    | \((?:\?(?:[:=!>]|<[=!]|[ims]*(?:-[ims]+)?:)|(?!\?))  # start of a group
    | [)|.^$]
    | \{\d+(?:,\d*)?\}                                     # Python reads {,2} as {0,2}; Java does not have it
    | [*+?]
    | \[(?:\^]|\^(?!])|(?![\^\]]))                        # start of a class
      (?:(?!--|&&|~~|\|\|)[^][\\]|\\(?:[dDwWsStnrfa]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^A-Za-z0-9]))*\]
    | \\(?:[dDwWsSAZtnrfa]|[bB](?!\{)|[1-9](?!\d)|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^A-Za-z0-9])
    | [^()|.^$*+?{[\\]
    """,
    re.VERBOSE,
)


def compile_java(pattern: str, *, any_text: bool = False) -> re.Pattern[str]:
    """Compile a pattern; for topic names only, unless `any_text`.

    Raises `ValueError`: the pattern is invalid, or has a construct that Java and Python may read differently; the
    message has its place.
    """
    at, pieces = 0, []
    while at < len(pattern):
        piece = _ALIKE.match(pattern, at)
        if piece is None or (any_text and _FOR_NAMES_ONLY.match(piece.group())):
            raise ValueError(f"from character {at + 1} on, {pattern[at:]!r}, Java and Python may not read the same")
        at = piece.end()
        pieces.append(piece.group())
    if any_text:
        dot_is_any = pieces and re.match(r"\(\?i*s", pieces[0])
        pieces = [piece if piece == "." and dot_is_any else _FOR_ANY_TEXT.get(piece, piece) for piece in pieces]
    try:
        return re.compile("".join(pieces), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{error}") from error
