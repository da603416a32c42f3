"""`pykafka produce`: write records from standard input or a file to a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np
import pyarrow as pa

from protocol.base.clock import Clock
from protocol.config import parse_producer
from protocol.errors import UsageError
from protocol.producer.accumulator import too_large_errors
from protocol.producer.partition_choice import GivenPartitions
from protocol.producer.producer import Producer
from protocol.records.encode import record_sizes
from protocol.records.record_columns import record_columns
from protocol.records.record_fields import HEADERS_TYPE
from spark_kafka_source.cli.completion import complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers
from spark_kafka_source.cli.record_inputs import (
    FORMATS,
    JSON,
    LINES,
    InputError,
    InputFormat,
    format_of_suffix,
    read_records,
)
from spark_kafka_source.cli.record_text import unescape
from spark_kafka_source.cli.rows import output_option
from spark_kafka_source.cli.values import Parsed
from spark_kafka_source.cli.written import producing, producing_in_transaction

_SEPARATOR = Parsed("separator", unescape)

Header = dict[str, Any]


def _headers(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[Header]:
    pairs = [value.partition("=") for value in values]
    return [{"key": name, "value": value.encode() if equals else None} for name, equals, value in pairs]


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-i",
    "--input",
    "kind",
    type=click.Choice(FORMATS),
    help="Format of the input.  [default: that of FILE's suffix; lines for standard input]",
)
@click.option(
    "-K",
    "--key-separator",
    "separator",
    type=_SEPARATOR,
    help=r"Text between key and value in each line, such as : or \t",
)
@click.option("-k", "--key", help="The key of all records that have none.")
@click.option("--key-column", metavar="NAME", help="Column of a table with the keys.  [default: key]")
@click.option(
    "--value-column",
    metavar="NAME",
    help="Column of a table with the values.  [default: value; without it rows become JSON objects]",
)
@click.option("-Z", "--empty-as-null", is_flag=True, help="Send empty keys and values as null.")
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_headers,
    help="Add a header; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(-1, 2**31 - 1),
    help="Write to this partition; -1: by the key, also if the input names partitions.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    help="compression.type  [default: none]",
)
@click.option("--acks", type=click.Choice(("all", "1", "0")), help="Replicas to wait for.  [default: all]")
@click.option("--transactional-id", help="Write all records in one transaction.")
@output_option
@asks_brokers
def produce(
    cluster: Cluster,
    topic: str,
    path: Path | None,
    kind: str | None,
    separator: bytes | None,
    key: str | None,
    key_column: str | None,
    value_column: str | None,
    empty_as_null: bool,
    headers: list[Header],
    partition: int | None,
    compression: str | None,
    acks: str | None,
    transactional_id: str | None,
    output: str,
) -> None:
    """Write records from standard input or FILE to a topic, and show the offsets written.

    Wrong input, a record that cannot be sent, and Ctrl-C end the command: no later record is written. The earlier ones
    are written and shown, except those in one batch with a missing partition or a wrong row of a table. An error of a
    broker may come late: the offsets acknowledged before it are shown, and later records may be written. With
    --transactional-id, no record of a failed command is visible to consumers with isolation.level=read_committed.

    \b
    Examples:
      echo 'customer-7:paid' | pykafka produce orders -K : -H source=shell
      pykafka produce orders orders.parquet -z zstd
      pykafka consume orders -e -o json | pykafka produce orders-copy -i json
    """
    kind = kind or (LINES if path is None else format_of_suffix(path.suffix))
    if separator is not None and kind != LINES:
        raise click.UsageError(f"--key-separator is for lines; the input is {kind}.")
    if separator == b"":
        raise click.UsageError("--key-separator is empty.")
    if (key_column or value_column) is not None and kind in (LINES, JSON):
        raise click.UsageError(f"--key-column and --value-column are for tables; the input is {kind}.")
    how = InputFormat(kind, separator, key_column, value_column, empty_as_null)
    properties = _properties(cluster, compression, acks, transactional_id)
    limit_bytes = parse_producer(properties).max_request_size_bytes
    if "transactional.id" in properties:
        opened = producing_in_transaction(cluster.client, properties, output, cluster.left_ms)
    else:
        opened = producing(cluster.client, properties, output)
    with _source(path) as source, opened as producer:
        sender = _Sender(producer, topic, limit_bytes, cluster.client.clock)
        try:
            for batch in read_records(source, how):
                sender.send(*_completed(batch, key, headers, partition))
        except KeyboardInterrupt as error:
            raise InputError("interrupted") from error


def _properties(
    cluster: Cluster, compression: str | None, acks: str | None, transactional_id: str | None
) -> Mapping[str, str]:
    producer_properties = {"compression.type": compression, "acks": acks, "transactional.id": transactional_id}
    return {**cluster.properties, **{name: value for name, value in producer_properties.items() if value is not None}}


@contextmanager
def _source(path: Path | None) -> Iterator[BinaryIO]:
    if path is not None:
        with path.open("rb") as file:
            yield file
        return
    if sys.stdin.isatty():
        click.echo("A record per line; Ctrl-D ends.", err=True)
    yield sys.stdin.buffer


def _completed(
    batch: pa.RecordBatch, key: str | None, headers: list[Header], partition: int | None
) -> tuple[pa.RecordBatch, GivenPartitions | None]:
    """Return records with the key, headers and partition of the options, and their partitions."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    partitions = columns.pop("partition", None)
    if partition is not None:
        partitions = None if partition < 0 else np.full(batch.num_rows, partition, np.int32)
    if key is not None:
        default = pa.scalar(key.encode(), pa.binary())
        columns["key"] = columns["key"].fill_null(default) if "key" in columns else pa.repeat(default, batch.num_rows)
    if headers:
        own = columns.get("headers")
        if own is None or own.null_count == len(own):
            columns["headers"] = pa.repeat(pa.scalar(headers, HEADERS_TYPE), batch.num_rows)
        else:
            columns["headers"] = pa.array(
                [[*(headers_of_row or ()), *headers] for headers_of_row in own.to_pylist()], HEADERS_TYPE
            )
    return pa.RecordBatch.from_pydict(columns), partitions


@dataclass
class _Sender:
    """Sends records in order, and none after one that cannot be sent. `sent`: number of records before the next."""

    producer: Producer
    topic: str
    limit_bytes: int
    clock: Clock
    sent: int = 0

    def send(self, records: pa.RecordBatch, partitions: GivenPartitions | None) -> None:
        """Send records up to the first that is too large. Raises `InputError` with the position of the error."""
        sizes = record_sizes(record_columns(records, self.clock.wall_ms()))
        too_large = too_large_errors(self.topic, sizes, self.limit_bytes, with_row_number=False)
        end = min(too_large, default=records.num_rows)
        first, last = self.sent + 1, self.sent + end
        try:
            self.producer.send_columns(
                self.topic, records.slice(0, end), None if partitions is None else partitions[:end]
            )
        except UsageError as error:
            positions = f"record {first}" if first == last else f"records {first} to {last}"
            raise InputError(f"{positions}: {error}") from error
        self.sent = last
        if too_large:
            raise InputError(f"record {last + 1}: {too_large[end]}")
