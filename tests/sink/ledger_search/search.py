"""Search every order of events of an exactly-once query: tasks, drivers, crashes, lost replies, timeouts.

A state is the coordinator's state, the requests still on their way, and for each start of the query the replies that
its tasks and its driver have received. Spark's rules are in `_Search.successors`: it runs the attempts of the tasks,
commits when each task has a result, and starts again. A search ends when it has seen each state once, or with a
counterexample.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from protocol.errors import KafkaError
from protocol.testing.fake_kafka.transactions import State as TransactionState
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from protocol.wire.messages.m66_list_transactions import LIST_TRANSACTIONS
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite
from tests.sink.ledger_search.cluster import PREPARED, Frozen, SearchCluster, is_refused_ledger, must_wait
from tests.sink.ledger_search.product import Driver, Request, Row, Task, run

_READS = (OFFSET_FETCH, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS)
_LATE = (END_TXN, INIT_PRODUCER_ID)
_TIMES_OUT = "times out"


@dataclass(frozen=True)
class Configuration:
    """The bounds of a search.

    Attributes
    ----------
    tasks : int
        Tasks of a batch; each has one row.
    empty_tasks : frozenset of int
        Tasks without rows.
    attempts : int
        Attempts of a task in one start; another one begins when Spark has lost one that still runs, or one has failed.
    starts : int
        Starts of the query. A second one begins at any time, also beside the first.
    batches : int
        Batches of a start.
    lost_attempts, lost_replies, late_requests, timeouts, crashes : int
        The most faults of each kind in a run. A late request takes effect at any time after its sender has given up
        waiting. A crash ends a driver between two steps.
    transaction_version : int
    empty_retries : bool
        Only the first attempt of a task has rows, as with a source whose rows change.
    known_gap : bool
        Accept that a late attempt aborts a decided transaction: docs/decisions/0026-takeover.md.
    merge : bool
        Merge processes with equal local states; False only to check that this changes no result.
    refusals : int
        The most refused writes of the ledger. Two writers could fence each other forever; in fact, they wait longer
        each time. A state beyond the limit is not followed further, and counts as `cut`.
    """

    tasks: int = 2
    empty_tasks: frozenset[int] = frozenset()
    attempts: int = 1
    starts: int = 1
    batches: int = 1
    lost_attempts: int = 0
    lost_replies: int = 0
    late_requests: int = 0
    timeouts: int = 0
    crashes: int = 0
    transaction_version: int = 2
    empty_retries: bool = False
    known_gap: bool = False
    merge: bool = True
    refusals: int = 1


class Attempt(NamedTuple):
    """An attempt of a task: its process, and whether Spark believes it lost."""

    process: int
    is_lost: bool = False


class Start(NamedTuple):
    """A start of the query: its batch, the attempts of each task, and the driver's process."""

    batch: int
    tasks: tuple[tuple[Attempt, ...], ...]
    driver: int | None = None
    is_over: bool = False
    """The driver has crashed, or the query has failed."""
    is_logged: bool = False
    """Spark has written the batch into its commit log."""


class Faults(NamedTuple):
    """Faults that may still happen."""

    lost_attempts: int
    lost_replies: int
    late_requests: int
    timeouts: int
    crashes: int
    refusals: int


class World(NamedTuple):
    """A state of the search."""

    cluster: int
    late: tuple[int, ...]
    starts: tuple[Start, ...]
    faults: Faults
    logged: int = -1
    """The last batch in Spark's commit log."""


@dataclass
class _Process:
    """A process after some replies; `following` is the process after one more."""

    code: Task | Driver
    replies: tuple[dict[str, Any] | None, ...]
    outcome: Request | PreparedWrite | bool | KafkaError
    following: dict[str, int] = field(default_factory=dict)

    @property
    def request(self) -> Request | None:
        """The next request; None once the process has ended."""
        return self.outcome if isinstance(self.outcome, Request) else None


class _Effect(NamedTuple):
    """The effect of a request on a state of the cluster; `key` and `text` are the reply."""

    cluster: int
    reply: dict[str, Any]
    key: str
    text: str
    refuses_ledger: bool
    must_wait: bool


@dataclass(frozen=True)
class _Settled:
    """A state of the cluster with all markers written.

    Attributes
    ----------
    visible : frozenset of (int, int)
        Batch and task of the visible rows.
    batch : int
        The decided batch.
    lost : frozenset of int
        Tasks whose decided transaction is neither open nor committed.
    still_open : list of str
        Open transactions.
    violation : str or None
    """

    visible: frozenset[tuple[int, int]]
    batch: int
    lost: frozenset[int]
    still_open: list[str]
    violation: str | None


class Violation(Exception):
    """A property does not hold in a state."""


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


Step = tuple[str, World | None]
CUT: Step = "beyond the limits of the configuration", None


def search(configuration: Configuration, max_states: int = 2_000_000) -> Result:
    """Visit each state once, depth first; stop at the first violation."""
    return _Search(configuration).run(max_states)


class _Search:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.cut = 0
        self._cluster = SearchCluster(configuration.transaction_version)
        self._clusters: list[Frozen] = []
        self._cluster_ids: dict[Frozen, int] = {}
        self._processes: list[_Process] = []
        self._process_ids: dict[Any, int] = {}
        self._beginnings: dict[Any, int] = {}
        self._requests: list[Request] = []
        self._request_ids: dict[str, int] = {}
        self._effects: dict[tuple[int, str], _Effect] = {}
        self._settled: dict[int, _Settled] = {}
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []

    # -- the search ---------------------------------------------------------------------------

    def run(self, max_states: int) -> Result:
        c = self.configuration
        faults = Faults(c.lost_attempts, c.lost_replies, c.late_requests, c.timeouts, c.crashes, c.refusals)
        first = World(self._cluster_id(), (), (self._start(0, 0),), faults)
        packed = self._pack(first)
        before: dict[bytes, bytes] = {packed: b""}
        stack, steps = [packed], 0
        while stack:
            packed = stack.pop()
            world = self._unpack(packed)
            try:
                following = self._following(world)
                self.check(world, is_last=not following)
                for step, after in following:
                    if after is not None:
                        self.check_step(step, world, after)
            except Violation as violation:
                return Result(len(before), steps, self.cut, str(violation), self._path(before, packed))
            for _, after in following:
                if after is None:
                    self.cut += 1
                    continue
                steps += 1
                if (packed_after := self._pack(after)) not in before:
                    before[packed_after] = packed
                    stack.append(packed_after)
            if len(before) > max_states:
                return Result(len(before), steps, self.cut, None, (), is_complete=False)
        return Result(len(before), steps, self.cut, None, ())

    def _following(self, world: World) -> list[Step]:
        following = list(self.successors(world))
        if not following and self._waiting(world):  # the transaction of a dead writer times out
            following = list(self._timeouts(world))
        return following

    def _path(self, before: dict[bytes, bytes], packed: bytes) -> list[str]:
        """Return the steps that led to a state."""
        steps = []
        while former := before[packed]:
            following = self._following(self._unpack(former))
            steps.append(next(step for step, after in following if after is not None and self._pack(after) == packed))
            packed = former
        return steps[::-1]

    # -- Spark's rules, and the faults --------------------------------------------------------

    def successors(self, world: World) -> Iterator[Step]:
        """Return each next step and the state after it."""
        for number, start in enumerate(world.starts):
            yield from self._steps_of_tasks(world, number, start)
            if not start.is_over:
                yield from self._steps_of_driver(world, number, start)
        yield from self._steps_of_cluster(world)
        if len(world.starts) < self.configuration.starts:
            start = self._start(len(world.starts), world.logged + 1)
            if start.batch < self.configuration.batches:
                yield (
                    f"start {len(world.starts)} begins batch {start.batch}",
                    world._replace(starts=(*world.starts, start)),
                )

    def _steps_of_tasks(self, world: World, number: int, start: Start) -> Iterator[Step]:
        for task, attempts in enumerate(start.tasks):
            for place, attempt in enumerate(attempts):
                name = f"start {number}, task {task}, attempt {place}"

                def moved(process: int, world: World, task: int = task, place: int = place) -> World:
                    return self._with_attempt(world, number, task, place, process)

                yield from self._steps_of_process(world, attempt.process, name, moved)
                is_running = self._processes[attempt.process].request is not None
                if is_running and not attempt.is_lost and start.driver is None and world.faults.lost_attempts:
                    lost = (*attempts[:place], attempt._replace(is_lost=True), *attempts[place + 1 :])
                    if len(attempts) < self.configuration.attempts:
                        lost = (*lost, self._attempt(number, start.batch, task, len(attempts)))
                        after = _with_task(world, number, task, lost)
                        yield f"{name} is lost, and continues", _less(after, "lost_attempts")

    def _with_attempt(self, world: World, number: int, task: int, place: int, process: int) -> World:
        """Return the state with a moved attempt; another attempt follows a failed one, the driver the last result."""
        start = world.starts[number]
        attempts = list(start.tasks[task])
        attempts[place] = attempts[place]._replace(process=process)
        has_failed = isinstance(self._processes[process].outcome, KafkaError)
        if has_failed and place == len(attempts) - 1 < self.configuration.attempts - 1 and start.driver is None:
            attempts.append(self._attempt(number, start.batch, task, len(attempts)))
        world = _with_task(world, number, task, tuple(attempts))
        start = world.starts[number]
        results = [self._processes[by_task[-1].process].outcome for by_task in start.tasks]
        if start.driver is None and not start.is_over:
            if any(isinstance(result, KafkaError) for result in results):
                messages = [result if isinstance(result, PreparedWrite) else None for result in results]
                return _with_start(world, number, start._replace(driver=self._driver(messages)))
            if all(isinstance(result, PreparedWrite) for result in results):
                return _with_start(world, number, start._replace(driver=self._driver(results)))
        return world

    def _steps_of_driver(self, world: World, number: int, start: Start) -> Iterator[Step]:
        name = f"start {number}, driver"
        if start.driver is not None:

            def moved(process: int, world: World) -> World:
                after = start._replace(driver=process, is_over=self._processes[process].outcome is False)
                return _with_start(world, number, after)

            if self._processes[start.driver].outcome is True:
                if not start.is_logged:
                    after = _with_start(world, number, start._replace(is_logged=True))
                    yield (
                        f"{name}: batch {start.batch} is in the commit log",
                        after._replace(logged=max(world.logged, start.batch)),
                    )
                elif start.batch + 1 < self.configuration.batches:
                    yield f"{name}: next batch", _with_start(world, number, self._start(number, start.batch + 1))
            else:
                yield from self._steps_of_process(world, start.driver, name, moved)
        if world.faults.crashes and not start.is_logged:
            yield f"{name} crashes", _less(_with_start(world, number, start._replace(is_over=True)), "crashes")

    def _steps_of_process(
        self, world: World, process: int, name: str, moved: Callable[[int, World], World]
    ) -> Iterator[Step]:
        request = self._processes[process].request
        if request is None:
            return
        effect = self._effect(world.cluster, request)
        cluster = effect.cluster
        if effect.refuses_ledger:
            if not world.faults.refusals:
                yield CUT
                return
            world = _less(world, "refusals")
        step = f"{name}: {request.api.name} -> {effect.text}"
        if cluster == world.cluster and effect.must_wait:
            return  # repeated until another transaction has ended
        yield step, moved(self._after(process, effect.reply, effect.key), world._replace(cluster=cluster))
        if request.api in _READS or not (world.faults.lost_replies or world.faults.late_requests):
            return
        without_reply = self._after(process, None, "None")
        if world.faults.lost_replies:
            after = moved(without_reply, world._replace(cluster=cluster))
            yield f"{step}, the reply is lost", _less(after, "lost_replies")
        if world.faults.late_requests and request.api in _LATE:
            late = tuple(sorted((*world.late, self._request_id(request))))
            yield (
                f"{name}: {request.api.name} is late",
                _less(moved(without_reply, world._replace(late=late)), "late_requests"),
            )

    def _steps_of_cluster(self, world: World) -> Iterator[Step]:
        for place, number in enumerate(world.late):
            effect = self._effect(world.cluster, self._requests[number])
            late = world.late[:place] + world.late[place + 1 :]
            step = f"the late {self._requests[number].api.name} arrives -> {effect.text}"
            yield step, world._replace(cluster=effect.cluster, late=late)
        self._cluster.restore(self._clusters[world.cluster])
        for name in self._cluster.transactions(*PREPARED):
            self._cluster.restore(self._clusters[world.cluster])
            self._cluster.write_markers(name)
            yield f"{name} is complete", world._replace(cluster=self._cluster_id())
        if world.faults.timeouts:
            yield from self._timeouts(_less(world, "timeouts"))

    def _timeouts(self, world: World) -> Iterator[Step]:
        self._cluster.restore(self._clusters[world.cluster])
        for name in self._cluster.transactions(TransactionState.ONGOING):
            self._cluster.restore(self._clusters[world.cluster])
            self._cluster.time_out(name)
            yield f"{name} {_TIMES_OUT}", world._replace(cluster=self._cluster_id())

    # -- properties ---------------------------------------------------------------------------

    def check(self, world: World, *, is_last: bool) -> None:
        """Raise `Violation` if a property does not hold once all decided transactions are complete."""
        settled = self._settled_state(world.cluster)
        if settled.violation is not None:
            raise Violation(settled.violation)
        for number, start in enumerate(world.starts):
            if start.driver is not None and self._processes[start.driver].outcome is True:
                visible = {task for batch, task in settled.visible if batch == start.batch}
                if missing := self._with_rows(start) - visible:
                    step = f"the rows of tasks {missing} are missing"
                    raise Violation(f"start {number} has committed batch {start.batch}, and {step}")
        if is_last:
            # No decision is written for a batch without rows, so that its late attempts are not recognised.
            self._check_last(world, settled.still_open if settled.batch >= world.starts[-1].batch else [])

    def check_step(self, step: str, before: World, after: World) -> None:
        """Raise `Violation` if a step other than a timeout aborts a decided transaction."""
        if self.configuration.known_gap and INIT_PRODUCER_ID.name in step:
            return
        settled, settled_after = self._settled_state(before.cluster), self._settled_state(after.cluster)
        lost = settled_after.lost - settled.lost
        if settled.batch == settled_after.batch and lost and _TIMES_OUT not in step:
            raise Violation(f"{step}: aborts a decided transaction of task {min(lost)}")

    def _settled_state(self, cluster: int) -> _Settled:
        if cluster not in self._settled:
            self._cluster.restore(self._clusters[cluster])
            self._cluster.settle()
            rows, ledger, still_open = self._cluster.rows(), self._cluster.ledger(), self._cluster.open_transactions()
            batch, lost = -1, frozenset[int]()
            if ledger is not None:
                batch = ledger.batch_id
                retained = {
                    f"{identity.producer_id}/{identity.producer_epoch}" for identity in still_open.values()
                } | set(rows.values())
                lost = frozenset(
                    task
                    for task, identity in ledger.transactions.items()
                    if f"{identity.producer_id}/{identity.producer_epoch}" not in retained
                )
            visible = frozenset((row.batch, row.task) for row in rows)
            violation = _violation_of_rows(sorted(rows), batch)
            self._settled[cluster] = _Settled(visible, batch, lost, sorted(still_open), violation)
        return self._settled[cluster]

    def _waiting(self, world: World) -> list[str]:
        """Return the next requests of all processes that are alive."""
        numbers = [attempt.process for start in world.starts for attempts in start.tasks for attempt in attempts]
        numbers += [start.driver for start in world.starts if start.driver is not None and not start.is_over]
        requests = [self._processes[number].request for number in numbers]
        return [request.key for request in requests if request is not None]

    def _with_rows(self, start: Start) -> set[int]:
        """Return the tasks whose last attempt has rows."""
        attempts = {task: self._processes[by_task[-1].process].code for task, by_task in enumerate(start.tasks)}
        return {task for task, attempt in attempts.items() if isinstance(attempt, Task) and attempt.has_rows}

    def _check_last(self, world: World, still_open: list[str]) -> None:
        """Check a state without a next step: each process has ended, and the last start leaves nothing open."""
        if waiting := self._waiting(world):
            raise Violation(f"no step is left, and {len(waiting)} processes wait: {waiting[0]}")
        if still_open and world.starts[-1].is_logged:
            raise Violation(f"the last start has committed its batch, and {', '.join(still_open)} is open")

    # -- values and their numbers -------------------------------------------------------------

    def _pack(self, world: World) -> bytes:
        """Return a state in few bytes: millions of them are kept."""
        numbers = [self._number(start) for start in world.starts]
        parts = [world.cluster, self._number(world.late), self._number(world.faults), world.logged, *numbers]
        return struct.pack(f"<{len(parts)}i", *parts)

    def _unpack(self, packed: bytes) -> World:
        cluster, late, faults, logged, *starts = struct.unpack(f"<{len(packed) // 4}i", packed)
        values = self._values
        return World(cluster, values[late], tuple(values[start] for start in starts), values[faults], logged)

    def _number(self, value: Any) -> int:
        number = self._numbers.setdefault((type(value), value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def _start(self, number: int, batch: int) -> Start:
        tasks = tuple((self._attempt(number, batch, task, 0),) for task in range(self.configuration.tasks))
        return Start(batch, tasks)

    def _attempt(self, start: int, batch: int, task: int, place: int) -> Attempt:
        row = Row(batch, task, start, place)
        is_empty = task in self.configuration.empty_tasks or (place > 0 and self.configuration.empty_retries)
        return Attempt(self._begin(row, Task(row, not is_empty)))

    def _driver(self, messages: Sequence[Any]) -> int:
        return self._begin(repr(messages), Driver(tuple(messages)))

    def _begin(self, key: Any, code: Task | Driver) -> int:
        if key not in self._beginnings:
            self._beginnings[key] = self._add(code, ())
        return self._beginnings[key]

    def _after(self, process: int, reply: dict[str, Any] | None, key: str) -> int:
        before = self._processes[process]
        if key not in before.following:
            before.following[key] = self._add(before.code, (*before.replies, reply))
        return before.following[key]

    def _add(self, code: Task | Driver, replies: tuple[dict[str, Any] | None, ...]) -> int:
        outcome, local_state = run(code, replies, self.configuration.transaction_version)
        key = repr(code), local_state if self.configuration.merge else repr(replies)
        number = self._process_ids.setdefault(key, len(self._processes))
        if number == len(self._processes):
            self._processes.append(_Process(code, replies, outcome))
        return number

    def _effect(self, cluster: int, request: Request) -> _Effect:
        key = cluster, request.key
        if key not in self._effects:
            self._cluster.restore(self._clusters[cluster])
            reply = self._cluster.handle(request)
            refuses_ledger, waits = is_refused_ledger(request, reply), must_wait(request.api, reply)
            texts = repr(reply), _short(reply)
            self._effects[key] = _Effect(self._cluster_id(), reply, *texts, refuses_ledger, waits)
        return self._effects[key]

    def _cluster_id(self) -> int:
        frozen = self._cluster.freeze()
        number = self._cluster_ids.setdefault(frozen, len(self._clusters))
        if number == len(self._clusters):
            self._clusters.append(frozen)
        return number

    def _request_id(self, request: Request) -> int:
        number = self._request_ids.setdefault(request.key, len(self._requests))
        if number == len(self._requests):
            self._requests.append(request)
        return number


def _with_start(world: World, number: int, start: Start) -> World:
    return world._replace(starts=(*world.starts[:number], start, *world.starts[number + 1 :]))


def _with_task(world: World, number: int, task: int, attempts: tuple[Attempt, ...]) -> World:
    start = world.starts[number]
    return _with_start(world, number, start._replace(tasks=(*start.tasks[:task], attempts, *start.tasks[task + 1 :])))


def _less(world: World, fault: str) -> World:
    return world._replace(faults=world.faults._replace(**{fault: getattr(world.faults, fault) - 1}))


def _violation_of_rows(rows: list[Row], decided: int) -> str | None:
    """Return what is wrong with visible rows."""
    for (batch, task), copies in groupby(rows, key=lambda row: row[:2]):
        if len(list(copies)) > 1:
            return f"a row of batch {batch}, task {task} is visible twice: {rows}"
        if batch > decided:
            return f"batch {batch} is visible and not decided"
    return None


def _short(reply: dict[str, Any]) -> str:
    text = str({name: value for name, value in reply.items() if value and name not in ("throttle_time_ms",)})
    return text if len(text) < 160 else f"{text[:157]}..."
