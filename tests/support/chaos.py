"""Start, stop and kill processes and threads in random order.

The tests that do this share this driver; what must hold meanwhile and afterwards is in each test. A kill at a certain
request is in `killing.py`.
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
    """A process or thread. A test implements the methods of the moves that it uses."""

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


LEADS_TO = {
    Move.START: State.UP,
    Move.STOP: State.DOWN,
    Move.KILL: State.DOWN,
}


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
        With more actors down than this, a step starts one of them. 0: what has been ended is started again at the next
        step.

    Attributes
    ----------
    counts : Counter of Move
    """

    def __init__(
        self, actors: Sequence[Actor], rng: random.Random, moves: Mapping[Move, int], max_down: int = 0
    ) -> None:
        self.counts: Counter[Move] = Counter()
        self._states = dict.fromkeys(actors, State.DOWN)
        self._rng = rng
        self._moves = moves
        self._max_down = max_down

    def step(self) -> Move:
        for actor in self.those(State.UP):
            actor.check()
        down = self.those(State.DOWN)
        actor = self._rng.choice(down if len(down) > self._max_down else list(self._states))
        is_down = self._states[actor] is State.DOWN
        move = Move.START if is_down else self._rng.choices(list(self._moves), list(self._moves.values()))[0]
        self.do(move, actor)
        return move

    def do(self, move: Move, actor: Actor) -> None:
        getattr(actor, move.value)()
        self._states[actor] = LEADS_TO[move]
        self.counts[move] += 1

    def start_all(self) -> None:
        for actor in self.those(State.DOWN):
            self.do(Move.START, actor)

    def end_all(self, move: Move = Move.STOP) -> None:
        for actor in self.those(State.UP):
            self.do(move, actor)

    def those(self, state: State) -> list[Actor]:
        return [actor for actor in self._states if self._states[actor] is state]


class Program(Actor):
    """A program in a new process group, which gets the signals.

    Parameters
    ----------
    command : sequence of str
    output : Path
        Standard output of all its runs. Standard error is beside it, with the suffix `.err`.
    stop_signal : signal.Signals or None
        Stops the program; None: the end of standard input does.
    """

    def __init__(self, command: Sequence[str], output: Path, stop_signal: signal.Signals | None = None) -> None:
        self.output = output
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command
        self._stop_signal = stop_signal

    def start(self) -> None:
        # Drop a partial line: the program was killed while printing, which is before the commit.
        self.output.write_text("".join(f"{line}\n" for line in self.lines()))
        with self.output.open("ab") as out, self.output.with_suffix(".err").open("ab") as errors:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=errors, start_new_session=True
            )

    def stop(self) -> None:
        process = self._running
        assert process.stdin is not None
        process.stdin.close()
        if self._stop_signal is not None:
            process.send_signal(self._stop_signal)
        assert process.wait(60) in (0, 128 + (self._stop_signal or 0)), f"{self.output}: {process.returncode}"

    def kill(self) -> None:
        """Kill the program and all that it has started, even after its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()

    def check(self) -> None:
        assert self.runs, f"{self.output} has ended early"

    @property
    def runs(self) -> bool:
        return self._running.poll() is None

    def lines(self) -> list[str]:
        """Return the complete lines of output. The last one may be partial if the program was killed."""
        return self.output.read_text().split("\n")[:-1] if self.output.exists() else []

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process
