"""An exactly-once query without Spark: tests make the calls of its tasks and drivers one by one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink import guarantee
from spark_kafka_source.sink.columns import SinkPlan
from spark_kafka_source.sink.exactly_once import batch_commit
from spark_kafka_source.sink.exactly_once.open_transactions import list_open_transactions
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite, TransactionalTaskWriter
from tests.support import read_committed
from tests.support.spark_task import spark_task

TOPIC = "written"


@dataclass
class Query:
    """One query, with all of its starts, that writes to the topics in its rows."""

    bootstrap_servers: str
    query_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    settings: dict[str, str] = field(default_factory=dict)
    identities: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """State of each start, which would run in a separate process."""

    def __post_init__(self) -> None:
        address = {"kafka.bootstrap.servers": self.bootstrap_servers}
        properties = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "starts", **self.settings}
        self.options = parse_sink_options({**address, **properties})
        self.client = PROCESS.client(self.options.client)

    def task(self, start: str, batch: int, task: int, *rows: tuple[str, str], **properties: str) -> PreparedWrite:
        """Write rows (topic, value) in a task."""
        columns = pa.record_batch({"topic": [topic for topic, _ in rows], "value": [value for _, value in rows]})
        context = spark_task(task, query_id=self.query_id, start_id=start, batch_id=batch, **properties)
        with context, self.process_of(start):
            return self.writer().write([columns])

    def tasks(self, start: str, batch: int = 0, name: str | None = None, count: int = 2) -> list[PreparedWrite]:
        """Write a row to `TOPIC` in each of the tasks; its value is `name`, by default the start, and the task."""
        return [self.task(start, batch, task, (TOPIC, f"{name or start}{task}")) for task in range(count)]

    def writer(self, *, streaming: bool = True) -> TransactionalTaskWriter:
        """Return the task writer."""
        plan = SinkPlan(None, frozenset({"topic", "value"}))
        task = guarantee.task_writer(self.options, plan, streaming=streaming)
        assert isinstance(task, TransactionalTaskWriter)
        return task

    def commit(self, *messages: PreparedWrite) -> None:
        with self.process_of(start_of(messages)):
            guarantee.commit(self.options, messages)

    def abort(self, *messages: PreparedWrite | None) -> None:
        with self.process_of(start_of(messages)):
            guarantee.abort(self.options, self.writer(), messages)

    def decide(self, *messages: PreparedWrite) -> None:
        """Decide as a driver that is killed before it commits."""
        batch = messages[0].batch
        assert batch is not None
        with self.process_of(batch.start_id):
            batch_commit.decide(self.client, messages, batch, 60_000)

    def process_of(self, start: str) -> AbstractContextManager[object]:
        return patch.object(PROCESS, "ledger_identities", self.identities.setdefault(start, {}))

    def transactional_id(self, task: int | None = None) -> str:
        """Return the transactional id of a task, or of the driver."""
        return f"starts-{self.query_id}" + ("" if task is None else f"-{task}")

    def left_open(self) -> list[str]:
        identities = list_open_transactions(self.client, self.transactional_id(), self.client.deadline())
        return [identity.transactional_id.rsplit("-", 1)[1] for identity in identities]

    def committed_values(self, *topics: str) -> list[str]:
        """Return the values that a `read_committed` consumer reads; assert that no transaction is open."""
        assert self.left_open() == []
        by_topic = [read_committed.by_this_project(self.bootstrap_servers, topic) for topic in topics or (TOPIC,)]
        return sorted(
            value.decode() for by_partition in by_topic for values in by_partition.values() for value in values
        )


class BatchWrite:
    """One `df.write` of a query's options."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.writer: TransactionalTaskWriter = query.writer(streaming=False)

    def task(self, task: int, *values: str) -> PreparedWrite:
        """Write values to `TOPIC` in a task."""
        schema = pa.schema({"topic": pa.string(), "value": pa.string()})
        rows = pa.record_batch({"topic": [TOPIC] * len(values), "value": list(values)}, schema=schema)
        with spark_task(task):
            return self.writer.write([rows])

    def commit(self, *messages: PreparedWrite) -> None:
        guarantee.commit(self.query.options, messages)

    def abort(self, *messages: PreparedWrite | None) -> None:
        guarantee.abort(self.query.options, self.writer, messages)

    def left_open(self) -> list[str]:
        """Return the tasks with an open transaction."""
        assert self.writer.batch_write is not None
        client, prefix = self.query.client, self.writer.batch_write.task_prefix
        identities = list_open_transactions(client, prefix, client.deadline())
        return [identity.transactional_id.removeprefix(prefix) for identity in identities]


@contextmanager
def paused_at(where: Any, call: str, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Pause the first call of `call` before it runs, and run `meanwhile`, which may call it, too."""
    original = getattr(where, call)

    def wait(*arguments: Any, **named: Any) -> Any:
        where_it_was.stop()
        meanwhile()
        return original(*arguments, **named)

    where_it_was = patch.object(where, call, wait)
    where_it_was.start()
    try:
        yield
    finally:
        where_it_was.stop()


def start_of(messages: Sequence[PreparedWrite | None]) -> str:
    return next(message.batch.start_id for message in messages if message is not None and message.batch is not None)
