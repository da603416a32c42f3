"""A model of a Kafka with a topic of keyed records, and processors that run in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest

from protocol import Client, KafkaConsumer, Processor, Producer, TopicPartition
from protocol.consumer.commits import Offsets, OnCommit
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.errors import CommitFailed
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.group.commits.committed_offsets import CallerOffsets, fetch_offsets
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka import consumer_group as fake_consumer_group
from tests.protocol.fetch.consuming import client_of

PARTITIONS = 2
GROUP = "workers"
# The offset of partition 1 in tests that write to partition 0 alone: its position is committed, too.
EMPTY = {1: 0}
PROPERTIES: dict[str, object] = {"group.id": GROUP, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 20}
# Of consumers that tests give to a processor.
MANUAL_COMMIT = {**PROPERTIES, "enable.auto.commit": False}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    monkeypatch.setattr(fake_consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    with FakeKafka() as kafka:
        kafka.create_topic("orders", PARTITIONS)
        kafka.create_topic("dead", 1)
        yield kafka


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with client_of(fake.bootstrap_servers, retry_backoff_ms=10, retry_backoff_max_ms=20) as client:
        yield client


Write = Callable[..., None]


@pytest.fixture
def write(client: Client) -> Iterator[Write]:
    """Yield `write([b"value", ...], keys=[b"key", ...], partition=0, headers=(), topic="orders")`."""
    with Producer(client, {"linger.ms": 0}) as producer:

        def send(values: Sequence[bytes], keys: Sequence[bytes | None] = (), partition: int = 0, **fields: Any) -> None:
            for number, value in enumerate(values):
                key = keys[number % len(keys)] if keys else None
                producer.send(fields.get("topic", "orders"), value, key=key, partition=partition,
                              headers=fields.get("headers", ()), timestamp_ms=1_000 + number)  # fmt: skip
            producer.flush()

        yield send


class ObservedConsumer(KafkaConsumer):
    """Notes a processor's polls with their timeouts, partitions it has paused, and commits without a reply."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.polls = 0
        self.last_timeout_ms: float | None = None
        self.paused_now: set[TopicPartition] = set()
        self.commits_in_flight = 0
        super().__init__(*arguments, **options)

    def poll(self, timeout_ms: float) -> ConsumerRecords:
        self.last_timeout_ms = timeout_ms
        records = super().poll(timeout_ms)
        self.polls += 1
        return records

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        super().pause(partitions)
        self.paused_now.update(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        super().resume(partitions)
        self.paused_now.difference_update(partitions)

    def commit_async(self, offsets: CallerOffsets | None = None, callback: OnCommit | None = None) -> None:
        def completed(committed: Offsets, error: CommitFailed | None) -> None:
            self.commits_in_flight -= 1
            if callback is not None:
                callback(committed, error)

        self.commits_in_flight += 1
        super().commit_async(offsets, completed)


class Running:
    """A processor that runs in a thread."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="run of a processor")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.processor.run()
        except BaseException as error:
            self.raised = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> BaseException | None:
        """Wait for the end of `run`, and return what it has raised."""
        self._thread.join(30)
        assert self.ended
        return self.raised

    def close(self) -> None:
        self.processor.close()
        self.join()


Start = Callable[..., Running]


StartObserved = Callable[..., tuple[Running, ObservedConsumer]]


@pytest.fixture
def start(client: Client) -> Iterator[Start]:
    """Yield `start(handler, threads=3, **{"group.id": ...})`: by default of "orders" in the test's group."""
    with ExitStack() as opened:

        def run(handler: Callable[[Any], object], **options: Any) -> Running:
            properties = {name: options.pop(name) for name in list(options) if "." in name}
            processor = Processor(client, handler, ["orders"], config={**PROPERTIES, **properties}, **options)
            return opened.enter_context(closing(Running(processor)))

        yield run


@pytest.fixture
def start_observed(client: Client) -> Iterator[StartObserved]:
    """Yield `start_observed(handler, ...)`, like `start`, with a consumer that the test observes."""
    with ExitStack() as opened:

        def run(handler: Callable[[Any], object], **options: Any) -> tuple[Running, ObservedConsumer]:
            properties = {name: options.pop(name) for name in list(options) if "." in name}
            consumer = ObservedConsumer(client, MANUAL_COMMIT | properties)
            opened.enter_context(consumer)
            processor = Processor(consumer, handler, ["orders"], **options)
            return opened.enter_context(closing(Running(processor))), consumer

        yield run


Committed = Callable[[], dict[int, int]]


@pytest.fixture
def committed(client: Client) -> Committed:
    """Return `committed()`: the group's offsets of "orders" by partition."""

    def fetch() -> dict[int, int]:
        offsets = fetch_offsets(client, GROUP, None, client.deadline())
        return {partition: offset.offset for (_, partition), offset in offsets.items()}

    return fetch


class Handler:
    """Notes the records that it has begun and finished; a test blocks or fails some of them by value.

    `at_blocks`: the number of calls that have come to a block, and wait or have waited for it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: list[ConsumerMessage] = []
        self.values: list[bytes] = []
        self.blocked: dict[bytes, threading.Event] = {}
        self.failing: dict[bytes, BaseException] = {}
        self.at_blocks = 0

    def block(self, value: bytes) -> threading.Event:
        return self.blocked.setdefault(value, threading.Event())

    def __call__(self, message: ConsumerMessage) -> None:
        value = message.value or b""
        with self.lock:
            self.begun.append(message)
            self.at_blocks += value in self.blocked
        if value in self.blocked:
            assert self.blocked[value].wait(30)
        if value in self.failing:
            raise self.failing[value]
        with self.lock:
            self.values.append(value)

    def has_begun(self, value: bytes) -> bool:
        return any(message.value == value for message in list(self.begun))


@pytest.fixture
def handler() -> Iterator[Handler]:
    handler = Handler()
    yield handler
    for event in handler.blocked.values():
        event.set()
