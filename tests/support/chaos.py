"""Start, stop and kill processes in random order; what must hold meanwhile and afterwards is in each test.

A kill at a certain request is in `killing.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from tests.conftest import ROOT


class Actor:
    """A process; a test implements the methods."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End in an orderly way."""
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Fail if the actor has ended unexpectedly. Called before each move while it runs."""


class State(Enum):
    DOWN = "down"
    UP = "up"


class Move(Enum):
    """A move, by the name of the actor's method."""

    START = "start"
    STOP = "stop"
    KILL = "kill"


class Chaos:
    """Changes the state of one random actor at each step.

    Parameters
    ----------
    actors : sequence of Actor
        All are down.
    rng : random.Random
    moves : mapping of Move to int
        The moves of an actor that is up, STOP and KILL, with their weights.
    max_down : int
        With more actors down than this, a step starts one of them.

    Attributes
    ----------
    counts : Counter of Move
    """

    def __init__(self, actors: Sequence[Actor], rng: random.Random, moves: Mapping[Move, int], max_down: int) -> None:
        self.counts: Counter[Move] = Counter()
        self._states = dict.fromkeys(actors, State.DOWN)
        self._rng, self._moves, self._max_down = rng, moves, max_down

    def step(self) -> None:
        for actor in self.those(State.UP):
            actor.check()
        down = self.those(State.DOWN)
        actor = self._rng.choice(down if len(down) > self._max_down else list(self._states))
        is_down = self._states[actor] is State.DOWN
        self._do(Move.START if is_down else self._rng.choices(list(self._moves), list(self._moves.values()))[0], actor)

    def start_all(self) -> None:
        for actor in self.those(State.DOWN):
            self._do(Move.START, actor)

    def end_all(self) -> None:
        for actor in self.those(State.UP):
            self._do(Move.STOP, actor)

    def those(self, state: State) -> list[Actor]:
        return [actor for actor in self._states if self._states[actor] is state]

    def _do(self, move: Move, actor: Actor) -> None:
        getattr(actor, move.value)()
        self._states[actor] = State.UP if move is Move.START else State.DOWN
        self.counts[move] += 1


class Program(Actor):
    """A program in a new process group, which gets the signals; `output` has what it prints and, in `.err`, errors."""

    def __init__(self, command: Sequence[str], output: Path, stop_signal: signal.Signals) -> None:
        self._command, self._output, self._stop_signal = command, output, stop_signal
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self._output.open("ab") as out, self._output.with_suffix(".err").open("ab") as errors:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
            )

    def stop(self) -> None:
        self._process.send_signal(self._stop_signal)
        status = self._process.wait(60)
        assert status in (0, 128 + self._stop_signal), f"{self._output}: {status}"

    def kill(self) -> None:
        """Kill the program and all that it has started, even after its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def check(self) -> None:
        assert self._process.poll() is None, f"{self._output} has ended early"
