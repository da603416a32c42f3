"""An in-memory Kafka whose topics have two partitions with ten records each."""

from __future__ import annotations

import pyarrow as pa

from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.schema import Api
from tests.protocol.fetch.consuming import records
from tests.support.encoded import encode

PARTITIONS, END = 2, 10
FIRST_TIMESTAMP_MS = 1_000


def small_batch(compression: str = "none", size: int = 10) -> bytes:
    """Return one record batch of ten records, 1 ms apart, with values of `size` bytes."""
    values = pa.array([b"%0*d" % (size, number) for number in range(END)], pa.binary())
    times = pa.array([FIRST_TIMESTAMP_MS + number for number in range(END)], pa.int64())
    columns = pa.RecordBatch.from_pydict({"value": values, "timestamp_ms": times})
    return bytes(encode(columns, compression=compression))


class SmallCluster(FakeKafka):
    """One broker. The id of a topic is its name, padded with dots to 16 bytes."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.names = topics or ("orders",)
        for name in self.names:
            self.create_topic(name, PARTITIONS, topic_id=name.encode().ljust(16, b"."))
        self.rewrite_all(small_batch())

    def rewrite_all(self, data: bytes) -> None:
        """Replace the records of every log."""
        for name in self.names:
            for number in range(PARTITIONS):
                self.rewrite(name, number, data)

    def grow(self, count: int, times: int = 1) -> None:
        """Append `count` records to every log, in one record batch, `times` times."""
        for name in self.names:
            for number in range(PARTITIONS):
                for _ in range(times):
                    self.write(name, number, records(self.log(name, number).end_offset, count))

    def silent_to(self, api: Api) -> None:
        """Send no reply to requests of `api`."""
        self.handlers[api] = lambda body, version: None


def recreate_topic(fake: FakeKafka, name: str, partitions: int = 1, count: int = 0) -> None:
    """Recreate a topic at once, with `count` records in each partition."""
    with fake.changed:
        fake.delete_topic(name)
        fake.create_topic(name, partitions)
        for partition in range(partitions if count else 0):
            fake.write(name, partition, records(0, count))
