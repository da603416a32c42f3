"""Suggest the known name for a misspelt one. Used for Kafka's properties and Spark's options."""

from __future__ import annotations

from collections.abc import Iterable

_MIN_LENGTH = 3
_SHORT = 8


def closest_match(name: str, candidates: Iterable[str]) -> str | None:
    """Return the known name that is closest to `name`, or None if no name is close.

    Two letters may be swapped, missing, added or wrong; one in names shorter than eight letters. Case and separators
    (`.`, `_`, `-`) are ignored: `group_id` matches `group.id`. A "min" never matches a "max", and names of one or two
    letters match nothing.
    """
    letters = _letters(name)
    best: tuple[int, str] | None = None
    for candidate in candidates:
        candidate_letters = _letters(candidate)
        if min(len(letters), len(candidate_letters)) < _MIN_LENGTH:
            continue
        most = 1 if min(len(letters), len(candidate_letters)) < _SHORT else 2
        if (
            abs(len(letters) - len(candidate_letters)) > most
            or _opposite(letters, candidate_letters)
            or _opposite(candidate_letters, letters)
        ):
            continue
        slips = _slips(letters, candidate_letters)
        if slips <= most and (best is None or slips < best[0]):
            best = slips, candidate
    return None if best is None else best[1]


def same(name: str, second: str) -> bool:
    """Return True if two names differ only in case and separators."""
    return _letters(name) == _letters(second)


def _opposite(first: str, second: str) -> bool:
    return "min" in first and "max" in second and "max" not in first


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _slips(first: str, second: str) -> int:
    """Count missing, added, replaced and swapped letters (optimal string alignment distance)."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        above, row = row, [i]
        for j, second_letter in enumerate(second, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != second_letter))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == second_letter:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = above
    return row[-1]
