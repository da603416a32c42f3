"""Suggest the known name for a misspelt one. Used for Kafka's properties and Spark's options."""

from __future__ import annotations

from collections.abc import Iterable

_MIN_LENGTH = 3
_SHORT = 8


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is closest to `name`, or None if no name is close.

    Two letters may be swapped, missing, added or wrong; one in names shorter than eight letters. Case and separators
    (`.`, `_`, `-`) are ignored: `group_id` matches `group.id`. A "min" never matches a "max", and names of one or two
    letters match nothing.
    """
    letters = _letters(name)
    best: tuple[int, str] | None = None
    for other in known:
        theirs = _letters(other)
        if min(len(letters), len(theirs)) < _MIN_LENGTH:
            continue
        most = 1 if min(len(letters), len(theirs)) < _SHORT else 2
        if abs(len(letters) - len(theirs)) > most or _opposite(letters, theirs) or _opposite(theirs, letters):
            continue
        slips = _slips(letters, theirs)
        if slips <= most and (best is None or slips < best[0]):
            best = slips, other
    return None if best is None else best[1]


def same(name: str, other: str) -> bool:
    """Return True if two names differ only in case and separators."""
    return _letters(name) == _letters(other)


def _opposite(one: str, other: str) -> bool:
    return "min" in one and "max" in other and "max" not in one


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _slips(one: str, other: str) -> int:
    """Count missing, added, replaced and swapped letters (optimal string alignment distance)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, row = row, [i]
        for j, theirs in enumerate(other, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != theirs))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == theirs:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = above
    return row[-1]
