"""Which known name was probably meant by one that is not known. Pure; used by `properties` and by Spark's options."""

from __future__ import annotations

from collections.abc import Iterable

_SHORT = 8


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is a slip of, if any: letters swapped, missing, added or wrong.

    Two such slips, one in a short name. Upper and lower case and what stands between words (`.`, `_`, `-`) do not
    count: `group_id` is `group.id`. Nor does a minimum become a maximum by a slip.
    """
    letters = _letters(name)
    best: tuple[int, str] | None = None
    for other in known:
        theirs = _letters(other)
        most = 1 if min(len(letters), len(theirs)) < _SHORT else 2
        if abs(len(letters) - len(theirs)) > most or _opposite(letters, theirs) or _opposite(theirs, letters):
            continue
        slips = _slips(letters, theirs)
        if slips <= most and (best is None or slips < best[0]):
            best = slips, other
    return None if best is None else best[1]


def same(name: str, other: str) -> bool:
    """Whether two names differ in case and in what stands between words at most."""
    return _letters(name) == _letters(other)


def _opposite(one: str, other: str) -> bool:
    return "min" in one and "max" in other and "max" not in one


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _slips(one: str, other: str) -> int:
    """How many letters were missed, added, replaced or swapped with their neighbour (optimal string alignment)."""
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
