"""The topic of `group_handlers`: its producers, and the records that a group must handle.

Some partitions may stay empty. With transactions, offsets have gaps (aborted records, markers), also at the log's end.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable

from protocol import KafkaError, Producer, TransactionalProducer
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.processing.failures import PREFIX
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.record_batches import committed, read_batch, rows

TOPIC = "t"
KEYS = 5
DURATION_S = 10.0
TRANSACTION_TIMEOUT_MS = 4_000
ABORT_RATE = 0.3
# Topic, partition, offset, timestamp, class and text of the exception.
ADDED_HEADERS = 6
Send = Callable[..., object]
Content = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Key, value and headers of a record."""


class HandlerTopic:
    """The records of the topic that a consumer with `read_committed` sees; each value is written once."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._records: dict[tuple[int, int], Content] = {}
        self._known_until: Counter[int] = Counter()

    def value(self, partition: int, offset: int) -> bytes | None:
        """Return a record's value; None for aborted records, markers, and offsets that are not stable yet."""
        content = self.content(partition, offset)
        return None if content is None else content[1]

    def content(self, partition: int, offset: int) -> Content | None:
        """Return key, value and headers of a record; None as `value` does."""
        if offset >= self._known_until[partition]:
            self._read(partition)
        return self._records.get((partition, offset))

    def judge_dead_letters(self, letters: Iterable[ConsumerMessage]) -> None:
        """Fail if a dead letter differs from its record, but by the headers that name the record and the failure."""
        for letter in letters:
            headers = letter.headers or []
            place = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
            assert len(place) == ADDED_HEADERS, f"headers of a dead letter: {headers}"
            source = self.content(int(place["partition"] or b""), int(place["offset"] or b""))
            content = letter.key, letter.value, headers[:-ADDED_HEADERS]
            assert place["topic"] == TOPIC.encode(), place
            assert source == content, f"the dead letter {content} is the record {source}"

    def has_no_record(self, partition: int, offset: int) -> bool:
        """Return True for the offset of a marker, or of an aborted record."""
        return self.value(partition, offset) is None and offset < self._known_until[partition]

    def _read(self, partition: int) -> None:
        with self._kafka.changed:
            image = self._kafka.controller.image.topics[TOPIC]
            leader = self._kafka.brokers.get(image.partitions[partition].leader)
            replica = None if leader is None else leader.replicas.get((image.topic_id, partition))
            if replica is None:
                return
            until, log = replica.last_stable_offset, replica.log
            batches = [read_batch(batch.data) for batch in log.batches if batch.last_offset < until]
            aborted = [{"producer_id": end.producer_id, "first_offset": end.first_offset} for end in log.aborted]
        for row in rows(committed(batches, aborted)):
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            self._records[partition, row["offset"]] = row["key"], row["value"], headers
        self._known_until[partition] = max(self._known_until[partition], until)


def parsed(value: bytes | None) -> tuple[int, int]:
    """Return partition and number of a value."""
    partition, _, number = (value or b"").partition(b":")
    return int(partition), int(number)


def is_poison(number: int) -> bool:
    """Return True for records that the processor's handler never processes."""
    return number % 23 == 5


def is_flaky(number: int) -> bool:
    """Return True for records that a handler processes at its second attempt."""
    return number % 11 == 3


def produce(servers: str, partitions: int) -> None:
    """Produce keyed records to the first partitions; neighbours often have the same key."""
    end_s = time.monotonic() + DURATION_S
    number = 0
    with Producer({"bootstrap.servers": servers}) as producer:
        while time.monotonic() < end_s:
            number = _send(producer.send, partitions, number)
            producer.flush()
            time.sleep(random.choice([0.1, 0.5]))


def produce_transactions(servers: str, partitions: int) -> None:
    """Produce the same records in transactions, a part of which is aborted; a new producer follows after an error."""
    end_s = time.monotonic() + DURATION_S
    number = 0
    properties = {"bootstrap.servers": servers, "transactional.id": "writer", "default.api.timeout.ms": 20_000}
    properties["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
    while time.monotonic() < end_s:
        try:
            with TransactionalProducer(properties) as producer:
                producer.init_transactions()
                while time.monotonic() < end_s:
                    producer.begin_transaction()
                    first, number = number, number + 3
                    _send(producer.send, partitions, first)
                    end = producer.abort_transaction if random.random() < ABORT_RATE else producer.commit_transaction
                    end()
                    time.sleep(random.choice([0.1, 0.5]))
        except KafkaError:
            time.sleep(0.2)


def _send(send: Send, partitions: int, number: int) -> int:
    """Send up to three records to each partition, and return the next number."""
    for following in range(number, number + 1 + number % 3):
        for partition in range(partitions):
            key = b"%d" % (following // 2 % KEYS)
            headers = [("number", b"%d" % following), ("number", None)] if following % 2 else None
            send(TOPIC, b"%d:%d" % (partition, following), key=key, partition=partition, headers=headers)
    return number + 1 + number % 3
