"""Processor time per record of `Processor` and of plain poll loops, whose handler does nothing, in turns.

python -m benchmarks.run processing --rounds 5
"""

from __future__ import annotations

import itertools
import resource
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.job import Figure, Job, Topic, say, section_main
from protocol import Client, KafkaConsumer, Processor

LOOP, LOOP_COLUMNS = "poll loop, messages", "poll loop, columns"
_BATCH_SIZE = 1_000

Run = Callable[[Client, Topic], int]
"""Handle all records; return their number."""


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    figures = []
    for topic in job.topics:
        with Client({"bootstrap.servers": job.bootstrap_servers}) as client:
            figures += _in_turns(job, client, topic)
    return figures


def _in_turns(job: Job, client: Client, topic: Topic) -> list[Figure]:
    runs = {who: run for who, run in _RUNS.items() if job.wants(who)}
    cpu: dict[str, list[float]] = {who: [] for who in runs}
    wall: dict[str, list[float]] = {who: [] for who in runs}
    for number in range(job.rounds + 1):
        for who, run in runs.items():
            cpu_s, started_s = _cpu_s(), time.monotonic()
            records = run(client, topic)
            if number:  # the first round is a warm-up
                cpu[who].append((_cpu_s() - cpu_s) / records * 1e9)
                wall[who].append((time.monotonic() - started_s) / records * 1e9)
    figures = [
        Figure("processing", topic.label, measure, "ns/record", who, tuple(samples))
        for measure, sample in (("CPU time", cpu), ("time", wall))
        for who, samples in sample.items()
    ]
    for figure in figures:
        say(f"  {topic.label} {figure.who}, {figure.measure}: {figure.value:,.0f} ns/record")
    return figures


def _properties() -> dict[str, Any]:
    return {"group.id": f"bench-{uuid.uuid4().hex[:8]}", "auto.offset.reset": "earliest", "enable.auto.commit": False}


def _poll(client: Client, topic: Topic) -> Iterator[Any]:
    """Yield the records of each poll, and commit every second."""
    with KafkaConsumer(client, _properties()) as consumer:
        consumer.subscribe([topic.name])
        remaining, commit_at_s = topic.records, time.monotonic() + 1
        while remaining > 0:
            records = consumer.poll(1_000)
            yield records
            remaining -= sum(batch.num_rows for batches in records.values() for batch in batches)
            if time.monotonic() >= commit_at_s:
                consumer.commit_async()
                commit_at_s = time.monotonic() + 1
        consumer.commit_sync()


def _loop(client: Client, topic: Topic) -> int:
    for records in _poll(client, topic):
        for message in records.messages():
            _handle(message)
    return topic.records


def _loop_columns(client: Client, topic: Topic) -> int:
    for records in _poll(client, topic):
        for batches in records.values():
            for batch in batches:
                _handle(batch)
    return topic.records


def _handle(inputs: Any) -> None:
    pass


def _processor(**options: Any) -> Run:
    def run(client: Client, topic: Topic) -> int:
        handled = itertools.count(1)
        done = threading.Lock()
        rows = [0]

        def handle(message: Any) -> None:
            if next(handled) >= topic.records:
                processor.close()

        def handle_batch(batch: Any) -> None:
            with done:
                rows[0] += batch.columns.num_rows
            if rows[0] >= topic.records:
                processor.close()

        properties = {**_properties(), "auto.commit.interval.ms": 1_000}
        handler = handle_batch if "batch_size" in options else handle
        processor = Processor(client, handler, [topic.name], config=properties, **options)
        with processor:
            processor.run()
        return topic.records

    return run


_RUNS: dict[str, Run] = {
    LOOP: _loop,
    **{f"Processor, order={order}": _processor(order=order) for order in ("key", "partition", "none")},
    "Processor, one thread": _processor(order="partition", threads=1),
    LOOP_COLUMNS: _loop_columns,
    "Processor, batches": _processor(order="partition", batch_size=_BATCH_SIZE),
}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    section_main(measure)
