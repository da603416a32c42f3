"""Start, stop, suspend and kill processes, threads, queries and brokers in random order.

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
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT


class Actor:
    """A process, thread, query or broker. A test implements the methods of the moves that it uses."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End in an orderly way."""
        raise NotImplementedError

    def suspend(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Fail if the actor has ended unexpectedly. Called before each move while it runs."""


class State(Enum):
    DOWN = "down"
    UP = "up"
    SUSPENDED = "suspended"


class Move(Enum):
    """A move, by the name of the actor's method."""

    START = "start"
    STOP = "stop"
    SUSPEND = "suspend"
    RESUME = "resume"
    KILL = "kill"


LEADS_TO = {
    Move.START: State.UP,
    Move.STOP: State.DOWN,
    Move.SUSPEND: State.SUSPENDED,
    Move.RESUME: State.UP,
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
        The moves of an actor that is up, with their weights: STOP, SUSPEND, KILL.
    max_down : int
        With more actors down or suspended than this, a step starts or resumes one of them. 0: what has been ended is
        started again at the next step.

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
        absent = self.those(State.DOWN, State.SUSPENDED)
        actor = self._rng.choice(absent if len(absent) > self._max_down else list(self._states))
        back = self._way_back(actor)
        move = back or self._rng.choices(list(self._moves), list(self._moves.values()))[0]
        self.do(move, actor)
        return move

    def do(self, move: Move, actor: Actor) -> None:
        getattr(actor, move.value)()
        self._states[actor] = LEADS_TO[move]
        self.counts[move] += 1

    def start_all(self) -> None:
        """Start or resume all actors that are not up."""
        for actor in self._states:
            if back := self._way_back(actor):
                self.do(back, actor)

    def end_all(self, move: Move = Move.STOP) -> None:
        """Stop, or kill, all actors that are not down; the suspended ones can only be killed."""
        for actor in self.those(State.UP, State.SUSPENDED):
            self.do(move, actor)

    def those(self, *states: State) -> list[Actor]:
        """Return the actors in these states."""
        return [actor for actor, state in self._states.items() if state in states]

    def _way_back(self, actor: Actor) -> Move | None:
        return {State.DOWN: Move.START, State.SUSPENDED: Move.RESUME, State.UP: None}[self._states[actor]]


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

    def suspend(self) -> None:
        os.killpg(self._running.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._running.pid, signal.SIGCONT)

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


class ChosenBroker(Actor):
    """The broker that `choose` returns when it is ended, for instance a coordinator; it is the one to start again."""

    def __init__(self, kafka: LocalKafka, choose: Callable[[], int]) -> None:
        self._kafka = kafka
        self._choose = choose
        self._chosen: int | None = None  # None: all brokers run

    def start(self) -> None:
        if self._chosen is not None:
            self._kafka.start(self._chosen)

    def kill(self) -> None:
        self._chosen = self._choose()
        self._kafka.kill(self._chosen)

    def suspend(self) -> None:
        self._chosen = self._choose()
        self._kafka.pause(self._chosen)

    def resume(self) -> None:
        assert self._chosen is not None
        self._kafka.resume(self._chosen)
