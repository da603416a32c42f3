"""A producer that shows the offsets of its records at the end; used by `pykafka produce`, `copy` and `replay`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from protocol.cluster.client import Client
from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from protocol.producer.producer import Producer
from protocol.producer.results import ProducedRange
from protocol.producer.transactional_producer import TransactionalProducer
from spark_kafka_source.cli.rows import print_rows

_COLUMNS = ("topic", "partition", "first_offset", "last_offset", "records")


@contextmanager
def producing(client: Client, properties: Mapping[str, str], output: str) -> Iterator[Producer]:
    """Open a producer; at the end, print what it has written.

    If input ends early, or is refused, the records before are written.
    """
    with Producer(client, properties) as producer:
        is_complete = False
        try:
            yield producer
            producer.flush()
            is_complete = True
        except (click.ClickException, UsageError):
            producer.flush()
            raise
        finally:
            if is_complete or producer.acknowledged:
                _print(producer.acknowledged, output)


@contextmanager
def producing_in_transaction(
    client: Client, properties: Mapping[str, str], output: str, timeout_ms: float
) -> Iterator[Producer]:
    """Open a producer with a transaction; after its commit, print what it has written."""
    with TransactionalProducer(client, properties) as producer:
        producer.init_transactions(timeout_ms)
        producer.begin_transaction()
        yield producer
        producer.commit_transaction()
        _print(producer.acknowledged, output)


def _print(written: Mapping[TopicPartition, ProducedRange], output: str) -> None:
    print_rows(
        _COLUMNS,
        [
            (*key, *(offset if offset >= 0 else None for offset in (rows.first_offset, rows.last_offset)), rows.count)
            for key, rows in sorted(written.items())
        ],
        output,
    )
