"""The product's own code, one request at a time: a process is a function from its replies to its next request.

The code of `sink.exactly_once` runs unchanged, from its first line, against a list of replies. At the first request
beyond the list it is abandoned, and the request is the process's next step. Nothing else lets a process wait or choose:
its clock moves by its own sleeps.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa

from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker, Metadata, Partition, Topic
from protocol.config import ProducerConfig, parse_client
from protocol.errors import ConnectionLost, KafkaError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.transaction.coordinator import FEATURE, add_offsets, init_producer_id
from protocol.transaction.end_transaction import end_transaction
from protocol.transaction.states import TransactionalIdentity
from protocol.wire.schema import Api
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.exactly_once import batch_commit, ledger_group, takeover, task_writer
from spark_kafka_source.sink.exactly_once.query import Query
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite, TransactionalTaskWriter
from tests.sink.ledger_search.local_state import local_state, value_of
from tests.support.spark_task import spark_task

TOPIC, ROWS = "written", "rows"
QUERY = Query("search", "query")
TIMEOUT_MS = 60_000
_SCHEMA = pa.schema({"topic": pa.string(), "value": pa.string()})
_BROKER = Broker(1, "127.0.0.1", 9092)
_CONFIG = parse_client({"bootstrap.servers": "127.0.0.1:9092"})


class Row(NamedTuple):
    """The one row of an attempt; its partition in the group `ROWS` names it."""

    batch: int
    task: int
    start: int
    attempt: int

    @property
    def partition(self) -> int:
        """The partition of the row."""
        return self.batch * 16 + self.task * 8 + self.start * 4 + self.attempt

    @classmethod
    def of_partition(cls, partition: int) -> Row:
        """Return the row of a partition."""
        return cls(partition // 16, partition // 8 % 2, partition // 4 % 2, partition % 4)


@dataclass(frozen=True)
class Request:
    """A request that a process sends next. Equal requests have equal `key`."""

    api: Api
    version: int
    body: dict[str, Any] = field(compare=False)
    key: str


class NextRequest(BaseException):
    """The process needs a reply that it does not have yet."""


class Replies:
    """The replies of a process so far. None is a lost reply."""

    def __init__(self, replies: Sequence[dict[str, Any] | None]) -> None:
        self._history = repr(replies)
        self._replies = iter(replies)
        self.next_request: Request | None = None
        self.local_state: Hashable = None
        """The state of the process at its next request."""

    def exchange(self, api: Api, version: int, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the reply to a request; raise `NextRequest` if there is none yet."""
        for reply in self._replies if self.next_request is None else ():
            return reply
        if self.next_request is None:
            self.next_request = Request(api, version, body, f"{api.name} v{version} {body}")
            self.local_state = (
                local_state(sys._getframe(1), run.__code__, self._history),
                value_of(PROCESS.ledger_identities, {}),
            )
        raise NextRequest


class _Connection:
    def __init__(self, transaction_version: int) -> None:
        self.features = {FEATURE: transaction_version}

    @staticmethod
    def choose_version(api: Api, at_least: int = 0, at_most: int | None = None) -> int:
        return api.last if at_most is None else min(api.last, at_most)


@dataclass
class _Reply:
    api: Api
    body: dict[str, Any] | None

    def result(self, deadline: object) -> dict[str, Any]:
        if self.body is None:
            raise ConnectionLost("127.0.0.1:9092: the reply is lost")
        return self.body


class SearchClient(Client):
    """A client whose requests are answered by `Replies`; it knows the broker and the topic."""

    def __init__(self, replies: Replies, transaction_version: int) -> None:
        super().__init__(_CONFIG, ManualClock())
        self._replies, self._connection = replies, _Connection(transaction_version)
        self.ledger_identities: dict[Any, Any] = {}
        partitions = {number: Partition(number, 1, 0, (1,), (1,), 0) for number in range(64)}
        topic = Topic(TOPIC, b"t" * 16, False, partitions, 0)
        self._snapshot = Metadata(brokers={1: _BROKER}, topics={TOPIC: topic})

    def send(self, broker: Broker, api: Api, body: Any, deadline: object, **options: Any) -> Any:
        versions = {name: value for name, value in options.items() if name in ("at_least", "at_most")}
        version = self._connection.choose_version(api, **versions)
        return _Reply(api, self._replies.exchange(api, version, body(version) if callable(body) else body))

    def ask_any(self, api: Api, body: Any, deadline: object, **options: Any) -> Any:
        return self.send(_BROKER, api, body, deadline, **options).result(deadline)

    def connection(self, *_: object) -> Any:
        return self._connection

    def coordinator(self, *_: object) -> Broker:
        return _BROKER

    def metadata(self, *_: object, **__: object) -> Metadata:
        return self._snapshot

    snapshot = metadata  # type: ignore[assignment]


class SearchProducer:
    """The part of `TransactionalProducer` that a task uses, with one request for its row.

    `row` is written as an offset.
    """

    def __init__(self, client: SearchClient, row: Row) -> None:
        self._client, self._row = client, row
        self._identity: TransactionalIdentity | None = None
        self._begun = False
        self.acknowledged: dict[Any, Any] = {}

    def __enter__(self) -> SearchProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._begun and self._identity is not None:
            end_transaction(self._client, self._identity, commit=False, deadline=self._client.deadline())

    def init_transactions(self, *, transactional_id: str) -> None:
        self._identity = init_producer_id(self._client, transactional_id, TIMEOUT_MS, self._client.deadline())

    def begin_transaction(self) -> None:
        self._begun = True

    def send_offsets_to_transaction(self, offsets: Mapping[Any, CommittedOffset], group: Any) -> None:
        self._add(group.group_id, offsets)

    def write_row(self) -> None:
        written_by = f"{self._identity.producer_id}/{self._identity.producer_epoch}"
        self._add(ROWS, {(TOPIC, self._row.partition): CommittedOffset(1, metadata=written_by)})

    def prepare_transaction(self) -> TransactionalIdentity:
        assert self._identity is not None
        self._begun = False
        return self._identity

    def _add(self, group: str, offsets: Mapping[Any, CommittedOffset]) -> None:
        add_offsets(self._client, self._identity, group, offsets, self._client.deadline())


class _NoBackoff:
    """A takeover is due at once: the search lets each process wait at each step anyway."""

    def __init__(self, *_: object) -> None:
        pass

    @staticmethod
    def is_due() -> bool:
        return True


class _SameThread:
    """An executor that runs each call at once."""

    @staticmethod
    def submit(call: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:  # as in the thread of an executor
            future.set_exception(error)
        return future


@dataclass(frozen=True)
class Task:
    """An attempt of a task; `has_rows` is False for a task without rows."""

    row: Row
    has_rows: bool = True

    def run(self, client: SearchClient) -> PreparedWrite:
        """Write the row in a transaction, and leave it open."""

        @contextmanager
        def producer(*_: object) -> Iterator[SearchProducer]:
            with ExitStack() as unless_prepared:
                lent = SearchProducer(client, self.row)
                unless_prepared.push(lent)
                yield lent
                unless_prepared.pop_all()

        def send_rows(lent: SearchProducer, plan: object, rows: Iterator[pa.RecordBatch]) -> None:
            for _ in rows:
                lent.write_row()

        writer = TransactionalTaskWriter(
            _CONFIG,
            ProducerConfig(transaction_timeout_ms=TIMEOUT_MS),
            SinkPlan(None, frozenset(_SCHEMA.names)),
            "search",
        )
        values = ["row"] if self.has_rows else []
        batch = pa.record_batch({"topic": [TOPIC] * len(values), "value": values}, schema=_SCHEMA)
        context = spark_task(
            self.row.task, query_id=QUERY.query_id, start_id=f"start {self.row.start}", batch_id=self.row.batch
        )
        with (
            context,
            patch.object(task_writer, "borrowed_producer", producer),
            patch.object(task_writer, "send_rows", send_rows),
            patch.object(task_writer, "topic_to_write", lambda *_: None),
            patch.object(task_writer, "tune_worker", lambda: None),
            patch.object(task_writer, "_marker_thread", lambda _: _SameThread()),
        ):
            return writer.write([batch])


@dataclass(frozen=True)
class Driver:
    """The end of a batch on the driver: a commit, and an abort if that fails or if a task has no message."""

    messages: tuple[PreparedWrite | None, ...]

    def run(self, client: SearchClient) -> bool:
        """Return True if the batch is committed."""
        if None not in self.messages:
            with suppress(KafkaError):
                batch_commit.commit_batch(client, self.messages, TIMEOUT_MS)
                return True
        batch_commit.abort_batch(client, None, self.messages, TIMEOUT_MS)
        return False


Outcome = Request | PreparedWrite | bool | KafkaError


def run(
    process: Task | Driver, replies: Sequence[dict[str, Any] | None], transaction_version: int
) -> tuple[Outcome, Hashable]:
    """Run a process with its replies so far; return its next request, its result, or its error.

    The second value is equal for processes that continue equally.
    """
    channel = Replies(replies)
    client = SearchClient(channel, transaction_version)
    result: PreparedWrite | bool | KafkaError
    with (
        patch.object(PROCESS, "ledger_identities", client.ledger_identities),
        patch.object(PROCESS, "client", lambda _: client),
        patch.object(takeover, "TakeoverBackoff", _NoBackoff),
        patch.object(ledger_group, "_POLL_S", 6.0),
    ):
        try:
            result = process.run(client)
        except NextRequest:
            result = False
        except KafkaError as error:
            result = error
    if channel.next_request is not None:
        return channel.next_request, (channel.next_request.key, channel.local_state)
    return result, repr(result)
