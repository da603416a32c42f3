"""Spark's rules and the faults: the next steps of a state, and the properties that hold in each state.

A state is the coordinator's state, the requests still on their way, and for each start of the query the replies that
its tasks and its driver have received. Spark runs the attempts of the tasks, commits when each task has a result, and
starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from protocol.errors import KafkaError
from protocol.testing.fake_kafka.transactions import State as TransactionState
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from protocol.wire.messages.m66_list_transactions import LIST_TRANSACTIONS
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite
from tests.sink.ledger_search.cluster import PREPARED, Frozen, SearchCluster, Settled, is_refused_ledger, must_wait
from tests.sink.ledger_search.configurations import Configuration
from tests.sink.ledger_search.product import Driver, Request, Row, Task, run

_READS = (OFFSET_FETCH, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS)
_LATE = (END_TXN, INIT_PRODUCER_ID)
_TIMES_OUT = "times out"
Value = TypeVar("Value")


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
    late_attempts: tuple[int, ...] = ()
    """Processes of attempts of earlier batches that Spark believes lost, and that still run."""


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


class Violation(Exception):
    """A property does not hold in a state."""

    def __init__(self, text: str, world: World) -> None:
        super().__init__(text)
        self.world = world


Step = tuple[str, World | None]
CUT: Step = "beyond the limits of the configuration", None


class Numbers(Generic[Value]):
    """Numbers of values; equal values have one number."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Value, key: Hashable = None) -> int:
        """Return the number of a value; a value that is not hashable has a `key`."""
        number = self._numbers.setdefault(value if key is None else key, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Model:
    """The states of a configuration, and the steps between them."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._cluster = SearchCluster(configuration.transaction_version)
        self._clusters = Numbers[Frozen]()
        self._processes = Numbers[_Process]()
        self._requests = Numbers[Request]()
        self._beginnings: dict[str, int] = {}
        self._effects: dict[tuple[int, str], _Effect] = {}
        self._settled: dict[int, Settled] = {}

    def first(self) -> World:
        """Return the state before the first step."""
        c = self.configuration
        faults = Faults(c.lost_attempts, c.lost_replies, c.late_requests, c.timeouts, c.crashes, c.refusals)
        return World(self._cluster_id(), (), (self._start(0, 0),), faults)

    # -- Spark's rules, and the faults --------------------------------------------------------

    def steps(self, actor: int, world: World) -> Iterator[Step]:
        """Return the steps of an actor, and the states after them; raise `Violation` if a property does not hold.

        Actor 0 is the cluster, the actors 1 and 2 are the starts. The steps, and these properties, depend on the
        actor's own start and on what all share: a `World` without its starts. The first start has always begun.
        """
        if actor == 0:
            self._check_cluster(world)
        elif actor <= len(world.starts):
            self._check_start(world, actor - 1)
        for step, after in self._steps_of_cluster(world) if actor == 0 else self._steps_of_start(world, actor - 1):
            if after is not None:
                self._check_step(step, world, after)
            yield step, after

    def last_steps(self, world: World) -> list[Step]:
        """Return the steps of a state without others: the transaction of a dead writer times out.

        Raise `Violation` if a process waits forever, or if the last start leaves a transaction open.
        """
        if waiting := self._waiting(world):
            if steps := list(self._timeouts(world)):
                return steps
            raise Violation(f"no step is left, and {len(waiting)} processes wait: {waiting[0]}", world)
        settled, start = self._settled_state(world.cluster), world.starts[-1]
        # No decision is written for a batch without rows, so that its late attempts are not recognised.
        if settled.still_open and settled.batch >= start.batch and start.is_logged:
            still_open = ", ".join(settled.still_open)
            raise Violation(f"the last start has committed its batch, and {still_open} is open", world)
        return []

    def _steps_of_start(self, world: World, number: int) -> Iterator[Step]:
        if number < len(world.starts):
            start = world.starts[number]
            yield from self._steps_of_tasks(world, number, start)
            yield from self._steps_of_late_attempts(world, number, start)
            if not start.is_over:
                yield from self._steps_of_driver(world, number, start)
        elif world.logged + 1 < self.configuration.batches:
            start = self._start(number, world.logged + 1)
            yield f"start {number} begins batch {start.batch}", world._replace(starts=(*world.starts, start))

    def _steps_of_tasks(self, world: World, number: int, start: Start) -> Iterator[Step]:
        for task, attempts in enumerate(start.tasks):
            for place, attempt in enumerate(attempts):
                name = f"start {number}, task {task}, attempt {place}"

                def moved(process: int, world: World, task: int = task, place: int = place) -> World:
                    return self._with_attempt(world, number, task, place, process)

                yield from self._steps_of_process(world, attempt.process, name, moved)
                is_running = self._processes.values[attempt.process].request is not None
                if is_running and not attempt.is_lost and start.driver is None and world.faults.lost_attempts:
                    lost = (*attempts[:place], attempt._replace(is_lost=True), *attempts[place + 1 :])
                    if len(attempts) < self.configuration.attempts:
                        lost = (*lost, self._attempt(number, start.batch, task, len(attempts)))
                        after = _with_task(world, number, task, lost)
                        yield f"{name} is lost, and continues", _less(after, "lost_attempts")

    def _steps_of_late_attempts(self, world: World, number: int, start: Start) -> Iterator[Step]:
        for place, process in enumerate(start.late_attempts):
            other_attempts = start.late_attempts[:place] + start.late_attempts[place + 1 :]

            def moved(process: int, world: World, other_attempts: tuple[int, ...] = other_attempts) -> World:
                late_attempts = self._running((*other_attempts, process))
                return _with_start(world, number, world.starts[number]._replace(late_attempts=late_attempts))

            yield from self._steps_of_process(world, process, self._late_name(process), moved)

    def _late_name(self, process: int) -> str:
        code = self._processes.values[process].code
        assert isinstance(code, Task)
        return f"start {code.row.start}, task {code.row.task}, attempt {code.row.attempt} of batch {code.row.batch}"

    def _with_attempt(self, world: World, number: int, task: int, place: int, process: int) -> World:
        """Return the state with a moved attempt; another attempt follows a failed one, the driver the last result."""
        start = world.starts[number]
        attempts = list(start.tasks[task])
        attempts[place] = attempts[place]._replace(process=process)
        ends_in_error = isinstance(self._processes.values[process].outcome, KafkaError)
        if ends_in_error and place == len(attempts) - 1 < self.configuration.attempts - 1 and start.driver is None:
            attempts.append(self._attempt(number, start.batch, task, len(attempts)))
        world = _with_task(world, number, task, tuple(attempts))
        start = world.starts[number]
        results = [self._processes.values[by_task[-1].process].outcome for by_task in start.tasks]
        has_failed = any(isinstance(result, KafkaError) for result in results)
        messages = tuple(result if isinstance(result, PreparedWrite) else None for result in results)
        if start.driver is None and not start.is_over and (has_failed or None not in messages):
            return _with_start(world, number, start._replace(driver=self._begin(Driver(messages))))
        return world

    def _steps_of_driver(self, world: World, number: int, start: Start) -> Iterator[Step]:
        name = f"start {number}, driver"
        if start.driver is not None:

            def moved(process: int, world: World) -> World:
                after = start._replace(driver=process, is_over=self._processes.values[process].outcome is False)
                return _with_start(world, number, after)

            if self._processes.values[start.driver].outcome is True:
                if not start.is_logged:
                    after = _with_start(world, number, start._replace(is_logged=True))
                    after = after._replace(logged=max(world.logged, start.batch))
                    yield f"{name}: batch {start.batch} is in the commit log", after
                elif start.batch + 1 < self.configuration.batches:
                    attempts = (attempt.process for attempts in start.tasks for attempt in attempts)
                    late_attempts = self._running((*start.late_attempts, *attempts))
                    following = self._start(number, start.batch + 1)._replace(late_attempts=late_attempts)
                    yield f"{name}: next batch", _with_start(world, number, following)
            else:
                yield from self._steps_of_process(world, start.driver, name, moved)
        if world.faults.crashes and not start.is_logged:
            yield f"{name} crashes", _less(_with_start(world, number, start._replace(is_over=True)), "crashes")

    def _steps_of_process(
        self, world: World, process: int, name: str, moved: Callable[[int, World], World]
    ) -> Iterator[Step]:
        request = self._processes.values[process].request
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
            late = tuple(sorted((*world.late, self._requests.number(request))))
            after = moved(without_reply, world._replace(late=late))
            yield f"{name}: {request.api.name} is late", _less(after, "late_requests")

    def _steps_of_cluster(self, world: World) -> Iterator[Step]:
        for place, number in enumerate(world.late):
            effect = self._effect(world.cluster, self._requests.values[number])
            late = world.late[:place] + world.late[place + 1 :]
            step = f"the late {self._requests.values[number].api.name} arrives -> {effect.text}"
            yield step, world._replace(cluster=effect.cluster, late=late)
        self._cluster.restore(self._clusters.values[world.cluster])
        for name in self._cluster.transactions(*PREPARED):
            self._cluster.restore(self._clusters.values[world.cluster])
            self._cluster.write_markers(name)
            yield f"{name} is complete", world._replace(cluster=self._cluster_id())
        if world.faults.timeouts:
            yield from self._timeouts(_less(world, "timeouts"))

    def _timeouts(self, world: World) -> Iterator[Step]:
        self._cluster.restore(self._clusters.values[world.cluster])
        for name in self._cluster.transactions(TransactionState.ONGOING):
            self._cluster.restore(self._clusters.values[world.cluster])
            self._cluster.time_out(name)
            yield f"{name} {_TIMES_OUT}", world._replace(cluster=self._cluster_id())

    # -- properties ---------------------------------------------------------------------------

    def _check_cluster(self, world: World) -> None:
        """Raise `Violation` if a row is visible twice, or too early, once all decided transactions are complete."""
        if violation := self._settled_state(world.cluster).violation:
            raise Violation(violation, world)

    def _check_start(self, world: World, number: int) -> None:
        """Raise `Violation` if a start has committed its batch, and rows are missing."""
        start = world.starts[number]
        if start.driver is None or self._processes.values[start.driver].outcome is not True:
            return
        visible = self._settled_state(world.cluster).visible
        tasks = [self._processes.values[attempts[-1].process].code for attempts in start.tasks]
        rows = [task.row for task in tasks if isinstance(task, Task) and task.has_rows]
        if missing := {row.task for row in rows if (start.batch, row.task) not in visible}:
            step = f"the rows of tasks {missing} are missing"
            raise Violation(f"start {number} has committed batch {start.batch}, and {step}", world)

    def _check_step(self, step: str, before: World, after: World) -> None:
        """Raise `Violation` if a step other than a timeout aborts a decided transaction."""
        if self.configuration.known_gap and INIT_PRODUCER_ID.name in step:
            return
        settled, settled_after = self._settled_state(before.cluster), self._settled_state(after.cluster)
        lost = settled_after.lost - settled.lost
        if settled.batch == settled_after.batch and lost and _TIMES_OUT not in step:
            raise Violation(f"{step}: aborts a decided transaction of task {min(lost)}", before)

    def _settled_state(self, cluster: int) -> Settled:
        if cluster not in self._settled:
            self._cluster.restore(self._clusters.values[cluster])
            self._settled[cluster] = self._cluster.settled()
        return self._settled[cluster]

    def _waiting(self, world: World) -> list[str]:
        """Return the next requests of all processes that are alive."""
        numbers = [attempt.process for start in world.starts for attempts in start.tasks for attempt in attempts]
        numbers += [start.driver for start in world.starts if start.driver is not None and not start.is_over]
        numbers += [process for start in world.starts for process in start.late_attempts]
        requests = [self._processes.values[number].request for number in numbers]
        return [request.key for request in requests if request is not None]

    # -- values and their numbers -------------------------------------------------------------

    def _running(self, processes: Iterable[int]) -> tuple[int, ...]:
        """Return the processes that have not ended, in the same order for equal states."""
        return tuple(sorted(number for number in processes if self._processes.values[number].request is not None))

    def _start(self, number: int, batch: int) -> Start:
        tasks = tuple((self._attempt(number, batch, task, 0),) for task in range(self.configuration.tasks))
        return Start(batch, tasks)

    def _attempt(self, start: int, batch: int, task: int, place: int) -> Attempt:
        row = Row(batch, task, start, place)
        is_empty = task in self.configuration.empty_tasks or (place > 0 and self.configuration.empty_retries)
        return Attempt(self._begin(Task(row, not is_empty)))

    def _begin(self, code: Task | Driver) -> int:
        key = repr(code)
        if key not in self._beginnings:
            self._beginnings[key] = self._add(code, ())
        return self._beginnings[key]

    def _after(self, process: int, reply: dict[str, Any] | None, key: str) -> int:
        before = self._processes.values[process]
        if key not in before.following:
            before.following[key] = self._add(before.code, (*before.replies, reply))
        return before.following[key]

    def _add(self, code: Task | Driver, replies: tuple[dict[str, Any] | None, ...]) -> int:
        outcome, local_state = run(code, replies, self.configuration.transaction_version)
        key = repr(code), local_state if self.configuration.merge else repr(replies)
        return self._processes.number(_Process(code, replies, outcome), key)

    def _effect(self, cluster: int, request: Request) -> _Effect:
        key = cluster, request.key
        if key not in self._effects:
            self._cluster.restore(self._clusters.values[cluster])
            reply = self._cluster.handle(request)
            refuses_ledger, waits = is_refused_ledger(request, reply), must_wait(request.api, reply)
            texts = repr(reply), _short(reply)
            self._effects[key] = _Effect(self._cluster_id(), reply, *texts, refuses_ledger, waits)
        return self._effects[key]

    def _cluster_id(self) -> int:
        return self._clusters.number(self._cluster.freeze())


def _with_start(world: World, number: int, start: Start) -> World:
    return world._replace(starts=(*world.starts[:number], start, *world.starts[number + 1 :]))


def _with_task(world: World, number: int, task: int, attempts: tuple[Attempt, ...]) -> World:
    start = world.starts[number]
    return _with_start(world, number, start._replace(tasks=(*start.tasks[:task], attempts, *start.tasks[task + 1 :])))


def _less(world: World, fault: str) -> World:
    return world._replace(faults=world.faults._replace(**{fault: getattr(world.faults, fault) - 1}))


def _short(reply: dict[str, Any]) -> str:
    text = str({name: value for name, value in reply.items() if value and name not in ("throttle_time_ms",)})
    return text if len(text) < 160 else f"{text[:157]}..."
