"""A regular expression in Java's syntax, as far as Python reads it alike.

`subscribePattern` is Java's syntax in Spark's own connector, and most of it is Python's too. What the two read
differently is refused, never guessed or translated. Topic names are ASCII without white space, which is all that
"alike" has to hold for. Pure; used by `selection`.
"""

from __future__ import annotations

import re
import warnings

DIFFERENCES = """\
The syntax is what Java (`java.util.regex.Pattern`) and Python read alike: characters, `.`, classes (`[a-z]`, `[^0-9]`),
`\\d`, `\\w`, `\\s` and their opposites, groups, alternatives, quantifiers, look-ahead and look-behind, `^`, `$`, `\\A`,
`\\Z`, `\\b`, `\\B`, back references by number, and the flags `i`, `m` and `s`, at the beginning or in `(?i:...)`. The
rest is an error, also where Spark's own connector takes it: write `[a-z]` for `\\p{Lower}`, `(...)` and `\\1` for
`(?<n>...)` and `\\k<n>`, `a\\.b` for `\\Qa.b\\E`, `\\Z` for `\\z`, and `[abc]` for `[a[bc]]`. Possessive
quantifiers and atomic groups need Python 3.11."""

# One piece of a pattern that both read alike, for topic names.
_ALIKE = re.compile(
    r"""
      \A\(\?[ims]+\)                                       # flags for all of it
    | \((?:\?(?:[:=!>]|<[=!]|[ims]*(?:-[ims]+)?:)|(?!\?))  # a group begins
    | [)|.^$]
    | \{\d+(?:,\d*)?\}                                     # Python counts from 0 in {,2}, Java does not know it
    | [*+?]
    | \[\^?(?:[^][\\&~|]|[&~|](?![&~|])|\\(?:[dDwWsStnrfa]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^A-Za-z0-9]))+\]
    | \\(?:[dDwWsSAZtnrfa]|[bB](?!\{)|[1-9](?!\d)|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^A-Za-z0-9])
    | [^()|.^$*+?{[\\]
    """,
    re.VERBOSE,
)


def compile_java(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled. Raises `ValueError` that says what is wrong, or not read alike, and where."""
    at = 0
    while at < len(pattern):
        piece = _ALIKE.match(pattern, at)
        if piece is None:
            raise ValueError(f"from character {at + 1} on, {pattern[at:]!r}, Java and Python may not read the same")
        at = piece.end()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(pattern, re.ASCII)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise ValueError(f"{error}") from error
