"""Processor time of the client's metrics: reads and writes with and without them, in turns in one process.

Without metrics means that `Sensor.record` does nothing. The difference of two runs of some seconds of processor time
is smaller than its own scatter, so the events are also counted, and their cost is measured in a loop: `events` is that
share of a run's processor time.

    python -m benchmarks.run metrics --rounds 15
"""

from __future__ import annotations

import resource
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.job import Figure, Job, Topic, say, section_main
from benchmarks.topics import create_topic, delete_topic
from protocol import EARLIEST, Client, Consumer, Producer
from protocol.config import parse_consumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import LATEST
from protocol.metrics.sensor import Event, Sensor

WITH, WITHOUT, EVENTS = "with metrics", "without metrics", "events"
_COLUMNS = ("key", "value", "offset", "timestamp_ms", "timestamp_type")
_CHUNK_ROWS = 10_000
# Small requests: one record each, as of a program that waits for every write.
_SINGLE = 2_000

Run = Callable[[], int]
"""Read or write; return the number of records."""


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    figures = []
    event_ns = _event_ns()
    for topic in job.topics:
        with Client({"bootstrap.servers": job.bootstrap_servers}) as client:
            for subject, run in _runs(client, job, topic):
                if job.wants(subject):
                    figures += _in_turns(job, f"{topic.label} {subject}", run, event_ns)
    return figures


def _in_turns(job: Job, subject: str, run: Run, event_ns: float) -> list[Figure]:
    costs: dict[str, list[float]] = {WITH: [], WITHOUT: [], EVENTS: []}
    with _counted() as events:
        run()
        events.clear()
        records = run()
        per_record = len(events) / records
    for number in range(job.rounds):
        for who in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
            with _unrecorded(who == WITHOUT):
                started_s = _cpu_s()
                records = run()
                costs[who].append((_cpu_s() - started_s) / records * 1e9)
    costs[EVENTS] = [per_record * event_ns]
    ratios = [first / second - 1 for first, second in zip(costs[WITH], costs[WITHOUT], strict=True)]
    share = per_record * event_ns / median(costs[WITH])
    say(
        f"  {subject}: {per_record * 1000:,.2f} events per 1,000 records, {share:.2%} of the processor time; "
        f"in turns {median(ratios):+.1%} ({min(ratios):+.1%} to {max(ratios):+.1%})"
    )
    return [Figure("metrics", subject, "CPU time", "ns/record", who, tuple(cost)) for who, cost in costs.items()]


def _event_ns() -> float:
    """Return the processor time of an event with three values and a histogram, the most expensive kind."""
    sensor, count = Sensor(3, buckets=True), 100_000
    best = float("inf")
    for _ in range(5):
        started_ns = time.thread_time_ns()
        for nth in range(count):
            sensor.record((nth * 1e-4, 12.5, 1_000, 0))
        best = min(best, (time.thread_time_ns() - started_ns) / count)
    say(f"  an event takes {best:,.0f} ns")
    return best


@contextmanager
def _counted() -> Iterator[list[None]]:
    """Yield a list with an entry for each event."""
    events: list[None] = []
    record = Sensor.record

    def count(sensor: Sensor, event: Event) -> None:
        events.append(None)
        record(sensor, event)

    with _replaced(count):
        yield events


@contextmanager
def _unrecorded(off: bool) -> Iterator[None]:
    with _replaced((lambda sensor, event: None) if off else Sensor.record):
        yield


@contextmanager
def _replaced(record: Any) -> Iterator[None]:
    before = Sensor.record
    Sensor.record = record  # type: ignore[method-assign]
    try:
        yield
    finally:
        Sensor.record = before  # type: ignore[method-assign]


def _runs(client: Client, job: Job, topic: Topic) -> Iterator[tuple[str, Run]]:
    ends = list_offsets(client, {(topic.name, partition): LATEST for partition in range(topic.partitions)})
    ranges = [Range(name, partition, 0, end.offset) for (name, partition), end in ends.items()]

    def read_ranges() -> int:
        reader = BoundedReader(client, parse_consumer({}), ranges, columns=_COLUMNS)
        return sum(batch.num_rows for _, batch in reader)

    def consume() -> int:
        with Consumer(client, columns=_COLUMNS) as consumer:
            consumer.consume_partitions(dict.fromkeys(ends, EARLIEST))
            remaining = topic.records
            while remaining > 0 and (read := consumer.poll(60_000)) is not None:
                remaining -= read[1].num_rows
        return topic.records

    yield "read, ranges", read_ranges
    yield "read, Consumer", consume
    written = f"bench-metrics-{uuid.uuid4().hex[:8]}"
    create_topic(job.bootstrap_servers, written, topic.partitions, {"retention.bytes": str(64 << 20)})
    values = pa.array([b"%0*d" % (topic.value_bytes, number) for number in range(_CHUNK_ROWS)], pa.binary())
    columns = pa.RecordBatch.from_pydict({"value": values})
    with Producer(client, compression_type=topic.compression, linger_ms=20) as producer:

        def write() -> int:
            for _ in range(topic.records // _CHUNK_ROWS):
                producer.send_columns(written, columns)
            producer.flush()
            return topic.records // _CHUNK_ROWS * _CHUNK_ROWS

        def write_singly() -> int:
            for _ in range(_SINGLE):
                producer.send_and_wait(written, values[0].as_py())
            return _SINGLE

        yield "write, columns", write
        yield "write, one record per request", write_singly
    delete_topic(job.bootstrap_servers, written)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    section_main(measure)
