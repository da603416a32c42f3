"""`pykafka perf`: throughput and latency of producing and consuming, in the form of Kafka's own tools."""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import KafkaError
from protocol.producer.producer import Producer
from protocol.producer.results import SentColumns
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers
from spark_kafka_source.cli.stop_signals import CHECK_MS, StopRequest, stop_request
from spark_kafka_source.cli.values import DURATION

_MB = 1024 * 1024
_REPORT_S = 5.0
_PERCENTILES = (50, 95, 99, 99.9)
_CONSUMER_HEADING = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


@click.group()
def perf() -> None:
    """Measure producing and consuming, with the figures of Kafka's performance tools."""


class _Sent(NamedTuple):
    """A call that sent rows: when, how many, and its result."""

    at_s: float
    rows: int
    columns: SentColumns


class _Latencies:
    """Measures, in a thread, the time from each call until all of its rows are acknowledged.

    Results are awaited in the order of the calls, so a call that is acknowledged before an earlier one counts as late
    as that one.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.latencies_ms: list[float] = []
        self._error: KafkaError | None = None
        self._sent: queue.SimpleQueue[_Sent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._wait, name="perf-latencies", daemon=True)
        self._thread.start()

    def add(self, sent: _Sent) -> None:
        """Add a call. Raises the error of an earlier one."""
        if self._error is not None:
            raise self._error
        self._sent.put(sent)

    def finish(self) -> None:
        """Wait for all calls. Raises the first error."""
        self._sent.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        while (sent := self._sent.get()) is not None:
            try:
                sent.columns.result()
            except KafkaError as error:
                self._error = self._error or error
            self.latencies_ms.append((time.monotonic() - sent.at_s) * 1000)
            self.rows.append(sent.rows)

    def average_and_maximum(self, first: int = 0) -> tuple[float, float]:
        """Return the average by row and the maximum, of the calls from `first` on."""
        count = min(len(self.rows), len(self.latencies_ms))
        rows, latencies_ms = self.rows[first:count], self.latencies_ms[first:count]
        if not rows:
            return 0.0, 0.0
        return float(np.average(latencies_ms, weights=rows)), max(latencies_ms)

    def percentiles(self) -> list[float]:
        """Return the percentiles by row."""
        rows, latencies_ms = np.array(self.rows), np.array(self.latencies_ms)
        order = np.argsort(latencies_ms)
        until = np.cumsum(rows[order])
        ranks = [min(int(percent / 100 * until[-1]), until[-1] - 1) for percent in _PERCENTILES]
        return [float(latencies_ms[order[np.searchsorted(until, rank, side="right")]]) for rank in ranks]


@perf.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--num-records", type=click.IntRange(1), required=True, help="Number of records.")
@click.option("--record-size", type=click.IntRange(0), default=100, show_default=True, help="Bytes of a value.")
@click.option(
    "--throughput", type=click.IntRange(-1), default=-1, show_default=True, help="Records per second; -1: all."
)
@click.option("--warmup-records", type=click.IntRange(0), default=0, help="Records sent before the measurement.")
@click.option("--rows", type=click.IntRange(1), default=500, show_default=True, help="Records per send_columns call.")
@asks_brokers
def produce(
    cluster: Cluster, topic: str, num_records: int, record_size: int, throughput: int, warmup_records: int, rows: int
) -> None:
    """Send random records, and print throughput and latency as kafka-producer-perf-test.sh does.

    The latency of a record is the time until all records of its call are acknowledged. Set properties of the producer
    by -X.

    \b
    Examples:
      pykafka perf produce perf-test -n 100000 --record-size 100
      pykafka perf produce perf-test -n 10000 --throughput 5000 -X acks=1 -X compression.type=lz4
    """
    with stop_request() as stop, Producer(cluster.client, cluster.properties) as producer:
        if warmup_records:
            _send(producer, topic, (warmup_records, record_size, throughput, rows), stop, reports=False)
            producer.flush()
        began_s = time.monotonic()
        latencies = _send(producer, topic, (num_records, record_size, throughput, rows), stop, reports=True)
        latencies.finish()
        elapsed_s = time.monotonic() - began_s
    count = sum(latencies.rows)
    if not count:
        return
    percentiles = ", ".join(
        f"{latency:.0f} ms {percentile:g}th"
        for percentile, latency in zip(_PERCENTILES, latencies.percentiles(), strict=True)
    )
    click.echo(f"{_figures(count, record_size, elapsed_s, latencies)}, {percentiles}.")


def _figures(count: int, size: int, elapsed_s: float, latencies: _Latencies, first: int = 0) -> str:
    rate, (average_ms, maximum_ms) = count / elapsed_s, latencies.average_and_maximum(first)
    return (
        f"{count} records sent, {rate:.1f} records/sec ({rate * size / _MB:.2f} MB/sec), {average_ms:.2f} ms avg "
        f"latency, {maximum_ms:.2f} ms max latency"
    )


def _send(
    producer: Producer, topic: str, numbers: tuple[int, int, int, int], stop: StopRequest, *, reports: bool
) -> _Latencies:
    """Send records of random bytes; print figures every five seconds."""
    num_records, size, throughput, rows = numbers
    latencies, sent = _Latencies(), 0
    batch = _random_batch(min(rows, num_records), size)
    began_s = reported_s = time.monotonic()
    reported_rows = reported_calls = 0
    while sent < num_records and not stop:
        count = min(batch.num_rows, num_records - sent)
        latencies.add(_Sent(time.monotonic(), count, producer.send_columns(topic, batch.slice(0, count))))
        sent += count
        now_s = time.monotonic()
        if throughput > 0:
            stop.wait(began_s + sent / throughput - time.monotonic())
        if reports and now_s - reported_s >= _REPORT_S:
            calls = len(latencies.latencies_ms)
            done = sum(latencies.rows)
            click.echo(f"{_figures(done - reported_rows, size, now_s - reported_s, latencies, reported_calls)}.")
            reported_s, reported_rows, reported_calls = now_s, done, calls
    if not reports:
        latencies.finish()
    return latencies


def _random_batch(rows: int, size: int) -> pa.RecordBatch:
    # Letters, as Kafka's tool sends them: they compress a little.
    letters = np.frombuffer(os.urandom(rows * size), np.uint8) % 26 + 65
    offsets = np.arange(rows + 1, dtype=np.int32) * size
    values = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters.astype(np.uint8))]
    )
    return pa.RecordBatch.from_arrays([values], ["value"])


@perf.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--num-records", type=click.IntRange(1), required=True, help="Number of records.")
@click.option("-g", "--group", shell_complete=complete_groups, help="[default: a new group]")
@click.option(
    "--idle", "idle_ms", type=DURATION, default="10s", show_default=True, help="End after this time without records."
)
@asks_brokers
def consume(cluster: Cluster, topic: str, num_records: int, group: str | None, idle_ms: int) -> None:
    """Read a topic from its start as a group member, and print throughput as kafka-consumer-perf-test.sh does.

    Set properties of the consumer by -X. Offsets are committed for the group.

    \b
    Examples:
      pykafka perf consume perf-test -n 100000
      pykafka perf consume perf-test -n 100000 -X fetch.max.bytes=10485760 -g perf-check
    """
    own = {"group.id": group or f"perf-consumer-{uuid.uuid4().hex[:8]}"}
    properties: Mapping[str, str] = {"auto.offset.reset": "earliest", **cluster.properties, **own}
    count = size_bytes = 0
    began = datetime.now()
    began_s = received_s = time.monotonic()
    rebalance_s: float | None = None
    with stop_request() as stop, KafkaConsumer(cluster.client, properties, columns=["key", "value"]) as consumer:
        consumer.subscribe([topic])
        while count < num_records and not stop:
            records = consumer.poll(CHECK_MS)
            now_s = time.monotonic()
            if rebalance_s is None and consumer.assignment:
                rebalance_s = now_s - began_s
            for batches in records.values():
                for batch in batches:
                    count += batch.num_rows
                    size_bytes += sum(
                        pc.sum(pc.binary_length(batch.column(name))).as_py() or 0 for name in ("key", "value")
                    )
            if records:
                received_s = now_s
            elif (now_s - received_s) * 1000 > idle_ms:
                break
        ended, elapsed_s = datetime.now(), time.monotonic() - began_s
    if count < num_records:
        click.echo(f"WARNING: {count} of {num_records} records were read.", err=True)
    fetch_s = max(elapsed_s - (rebalance_s or 0.0), 1e-3)
    read_mb = size_bytes / _MB
    click.echo(_CONSUMER_HEADING)
    figures = (
        *(_time(began), _time(ended), f"{read_mb:.4f}", f"{read_mb / elapsed_s:.4f}", str(count)),
        *(f"{count / elapsed_s:.4f}", f"{(rebalance_s or 0.0) * 1000:.0f}", f"{fetch_s * 1000:.0f}"),
        *(f"{read_mb / fetch_s:.4f}", f"{count / fetch_s:.4f}"),
    )
    click.echo(", ".join(figures))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}:{moment.microsecond // 1000:03}"
