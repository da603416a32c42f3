"""Search every order of events of an exactly-once query: tasks, drivers, crashes, lost replies, timeouts.

A search expands its newest states first, in batches: columns of packed states. It ends when it has seen each state
once, or with a counterexample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from tests.sink.ledger_search.configurations import Configuration
from tests.sink.ledger_search.model import Model, Numbers, Start, Violation, World

Column = npt.NDArray[np.int64]

_CUT = -(1 << 63)
"""The difference of a step beyond the limits: it makes a packed state negative."""
_SHARE = 32
"""A batch is a 32nd of the visited states: few batches, and a violation far from the first state is found early."""
_MAX_STATES = 20_000_000
"""More than twice the 8 million states of the largest configuration, which take 1.3 GB."""
_BITS = 21
_FIELD = (1 << _BITS) - 1


@dataclass(frozen=True)
class Result:
    """The result of a search; `counterexample` lists its steps."""

    states: int
    steps: int
    cut: int
    violation: str | None
    counterexample: Sequence[str]
    is_complete: bool = True
    """False if the search has stopped at its limit of states."""


def search(configuration: Configuration, max_states: int = _MAX_STATES) -> Result:
    """Visit each state once; stop at the first violation, or after the batch that exceeds `max_states`."""
    return _Search(configuration).run(max_states)


class _Packing:
    """States as numbers of 63 bits: a field for what all share, and one for each start; 0 has not begun."""

    def __init__(self) -> None:
        self._shared, self._starts = Numbers[World](), Numbers[Start | None]()
        self._starts.number(None)

    def pack(self, world: World) -> int:
        numbers = [self._shared.number(world._replace(starts=())), *map(self._starts.number, world.starts)]
        if max(numbers) >> _BITS:
            raise OverflowError(f"a field of a packed state has only {_BITS} bits")
        return sum(number << _BITS * place for place, number in enumerate(numbers))

    def unpack(self, packed: int) -> World:
        """Return the state of `pack`."""
        shared = self._shared.values[packed & _FIELD]
        starts = []
        while packed := packed >> _BITS:
            starts.append(self._starts.values[packed & _FIELD])
        return shared._replace(starts=tuple(starts))


class _Actor:
    """The cluster or a start: its steps from a column of packed states.

    The steps depend on the fields in `reads` alone, so that states with equal fields have equal steps. Each step is
    kept as the difference that it adds to a packed state.
    """

    def __init__(self, model: Model, packing: _Packing, actor: int) -> None:
        self._model, self._packing, self._actor = model, packing, actor
        self._reads = _FIELD | _FIELD << _BITS * actor
        self._memo: dict[int, list[int]] = {}

    def expand(self, states: Column) -> tuple[Column, Column]:
        """Return the place of a state and the state after it, for each step."""
        fields, examples, which = np.unique(states & self._reads, return_index=True, return_inverse=True)
        for key, state in zip(fields.tolist(), states[examples].tolist(), strict=True):
            if key not in self._memo:
                self._memo[key] = self._differences(state)
        differences = [self._memo[key] for key in fields.tolist()]
        counts = np.fromiter(map(len, differences), np.int64, len(differences))
        repeats = counts[which]
        first_steps = (counts.cumsum() - counts)[which] - (repeats.cumsum() - repeats)
        places = np.repeat(np.arange(len(states)), repeats)
        steps = np.repeat(first_steps, repeats) + np.arange(len(places))
        return places, states[places] + np.fromiter(chain.from_iterable(differences), np.int64)[steps]

    def _differences(self, state: int) -> list[int]:
        following = self._model.steps(self._actor, self._packing.unpack(state))
        return [_CUT if after is None else self._packing.pack(after) - state for _, after in following]


class _Search:
    def __init__(self, configuration: Configuration) -> None:
        self._model, self._packing = Model(configuration), _Packing()
        self._actors = [_Actor(self._model, self._packing, actor) for actor in range(configuration.starts + 1)]

    def run(self, max_states: int) -> Result:
        visited = waiting = np.array([self._packing.pack(self._model.first())])
        batches: list[Column] = []
        steps = cut = 0
        while len(waiting) and len(visited) <= max_states:
            size = len(visited) // _SHARE + 1
            batches.append(waiting[-size:].copy())
            waiting = waiting[:-size]
            try:
                _, after = self._expand(batches[-1])
            except Violation as violation:
                path = self._path(batches, self._packing.pack(violation.world))
                return Result(len(visited), steps, cut, str(violation), path)
            within = after[after >= 0]
            steps, cut = steps + len(within), cut + len(after) - len(within)
            following = np.unique(within)
            places = np.searchsorted(visited, following)
            is_new = visited[np.minimum(places, len(visited) - 1)] != following
            visited = np.insert(visited, places[is_new], following[is_new])
            waiting = np.concatenate([waiting, following[is_new]])
        return Result(len(visited), steps, cut, None, (), is_complete=not len(waiting))

    def _expand(self, states: Column) -> tuple[Column, Column]:
        """Return the place of a state and the state after it, for each step."""
        expanded = [actor.expand(states) for actor in self._actors]
        has_steps = np.zeros(len(states), bool)
        for places, _ in expanded:
            has_steps[places] = True
        for place in np.flatnonzero(~has_steps).tolist():
            last_steps = self._model.last_steps(self._packing.unpack(int(states[place])))
            after = [self._packing.pack(world) for _, world in last_steps]
            expanded.append((np.full(len(after), place), np.array(after, np.int64)))
        return np.concatenate([places for places, _ in expanded]), np.concatenate([after for _, after in expanded])

    def _path(self, batches: Sequence[Column], state: int) -> list[str]:
        """Return the steps that lead to a state; the state before it is in an earlier batch."""
        steps = []
        for batch in batches[-2::-1]:
            places, after = self._expand(batch)
            if len(befores := batch[places[after == state]]):
                steps.append(self._text(int(befores[0]), state))
                state = int(befores[0])
        return steps[::-1]

    def _text(self, before: int, state: int) -> str:
        world = self._packing.unpack(before)
        following = [step for actor in range(len(self._actors)) for step in self._model.steps(actor, world)]
        named = following or self._model.last_steps(world)
        return next(step for step, after in named if after is not None and self._packing.pack(after) == state)
