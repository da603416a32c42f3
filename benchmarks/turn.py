"""One turn of `against_commit`: processor time of one job, with the code on `PYTHONPATH`.

Imports only what older commits also have. Prints the processor time in seconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

Job = Callable[[], object]
REPEATS = 3
TRIGGERS = 60
EMPTY_POLLS = 2_000
EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "turn"}


def source(servers: str, topic: str, **options: str) -> Any:
    from spark_kafka_source.source import KafkaGroupDataSource

    stream_options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", **options}
    data_source = KafkaGroupDataSource(stream_options)
    return data_source.streamReader(data_source.schema())


def read(servers: str, topic: str, rows: int, **options: str) -> Job:
    """Read all rows as tasks of a stream do."""
    reader = source(servers, topic, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    def job() -> None:
        for _ in range(REPEATS):
            partitions = reader.partitions(start, end)
            count = sum(batch.num_rows for partition in partitions for batch in reader.read(partition))
            assert count == rows, count

    return job


def trigger(servers: str, topic: str, rows: int) -> Job:
    """Plan batches without new rows."""
    reader = source(servers, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    def job() -> None:
        for _ in range(TRIGGERS):
            reader.partitions(end, reader.latestOffset(end, reader.getDefaultReadLimit()))

    return job


def consumer(servers: str, topic: str, rows: int) -> Job:
    """Poll all rows without Spark."""
    from protocol import KafkaConsumer

    made = KafkaConsumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    made.assign([(topic, number) for number in range(4)])

    def job() -> None:
        count = 0
        while count < rows:
            count += sum(batch.num_rows for batches in made.poll(1000).values() for batch in batches)
        assert count == rows, count

    return job


def poll(servers: str, topic: str, rows: int, partitions: int = 1) -> Job:
    """Poll rows in small pieces, and then nothing."""
    from protocol import KafkaConsumer

    properties = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "max.poll.records": 500}
    made = KafkaConsumer({"bootstrap.servers": servers, **properties})
    made.assign([(topic, number) for number in range(partitions)])

    def job() -> None:
        count = 0
        while count < rows:
            count += sum(batch.num_rows for batches in made.poll(1000).values() for batch in batches)
        assert count == rows, count
        for _ in range(EMPTY_POLLS):
            made.poll(0)

    return job


def writer(servers: str, topic: str, **options: str) -> Any:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from spark_kafka_source.source import KafkaGroupDataSource

    write_options = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.compression.type": "lz4", **options}
    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    return KafkaGroupDataSource(write_options).writer(schema, overwrite=False)


def sink(servers: str, topic: str, rows: int, **options: str) -> Job:
    """Write rows as one task of a batch does."""
    import pyarrow as pa

    count = 10_000
    values = [b"%100d" % (number * 7919) for number in range(count)]
    batch = pa.record_batch(
        {"key": pa.array(values, pa.binary()), "value": pa.array([b"".join([v, v]) for v in values], pa.binary())}
    )

    def job() -> None:
        for _ in range(REPEATS):
            made = writer(servers, topic, **options)  # exactly once, each serves one write
            made.commit([made.write(iter([batch] * (rows // count)))])

    return job


def sink_exactly_once(servers: str, topic: str, rows: int) -> Job:
    """Write rows as one task of a batch does, each batch in a transaction."""
    from pyspark import TaskContext

    context = TaskContext._getOrCreate()
    context._partitionId, context._localProperties = 0, {}
    return sink(servers, topic, rows, **EXACTLY_ONCE)


def loading(make: Callable[[str, str], object]) -> Callable[..., Job]:
    """Unpickle what a new worker receives."""

    def prepare(servers: str, topic: str, rows: int) -> Job:
        readable, writable = os.pipe()
        if (child := os.fork()) == 0:
            from pyspark.cloudpickle import dumps

            os.write(writable, dumps(make(servers, topic)))
            os._exit(0)
        os.waitpid(child, 0)
        sent = os.read(readable, 1 << 20)
        import pyarrow  # noqa: F401
        import pyspark.sql.datasource  # noqa: F401
        from pyspark.cloudpickle import loads

        return lambda: loads(sent)

    return prepare


JOBS: dict[str, Callable[..., Job]] = {
    "read": read,
    "read-headers": lambda *arguments: read(*arguments, includeHeaders="true"),
    "read-incompressible": read,
    "trigger": trigger,
    "trigger-1000-partitions": trigger,
    "consumer": consumer,
    "poll": poll,
    "poll-1000-partitions": lambda *arguments: poll(*arguments, partitions=1_000),
    "sink": sink,
    "sink-exactly-once": sink_exactly_once,
    "unpickle-reader": loading(source),
    "unpickle-writer": loading(writer),
    "unpickle-writer-exactly-once": loading(lambda *arguments: writer(*arguments, **EXACTLY_ONCE)),
}

if __name__ == "__main__":
    name, servers, topic, rows = sys.argv[1:5]
    job = JOBS[name](servers, topic, int(rows))
    start_s = time.process_time()
    job()
    print(time.process_time() - start_s)
