"""Errors that pass: the partition is fetched again after each of them, and only the user's errors are raised."""

from __future__ import annotations

import logging
import time

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import BrokerError, KafkaError, ProtocolError
from protocol.fetch.consumer import Consumer
from protocol.fetch.log_offsets import Range
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.schema import Api
from tests.protocol.fetch.consuming import client_of, reader, records, rows_of
from tests.support.wait_until import wait_until


def poll_until_read(consumer: Consumer) -> list[KafkaError]:
    """Read the five records of both partitions; return the errors that `poll` raised meanwhile."""
    rows, raised = {0: 0, 1: 0}, []

    def read() -> bool:
        try:
            if (consumers := consumer.poll(100)) is not None:
                rows[consumers[0].partition] += consumers[1].num_rows
        except KafkaError as error:
            raised.append(error)
        return rows == {0: 5, 1: 5}

    wait_until(read, lambda: f"{rows}, raised {raised}")
    return raised


@pytest.mark.parametrize("api", [FETCH, METADATA], ids=lambda api: api.name)
def test_poll_raises_authorization_error_once_and_reads_partition_afterwards(
    fake: FakeKafka, consumer: Consumer, api: Api
) -> None:
    fake.refuse(api, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1, partition=("orders", 0) if api is FETCH else None)
    consumer.consume_partitions({("orders", 0): 0, ("orders", 1): 0})
    raised = poll_until_read(consumer)
    assert [type(error) for error in raised] == [BrokerError] * (1 if api is FETCH else 2)
    assert "orders" in str(raised[0])


def test_unknown_server_error_is_retried_with_one_warning(
    fake: FakeKafka, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    fake.refuse(FETCH, ErrorCode.UNKNOWN_SERVER_ERROR, 3, partition=("orders", 0))
    with caplog.at_level(logging.WARNING):
        consumer.consume_partitions({("orders", 0): 0, ("orders", 1): 0})
        assert poll_until_read(consumer) == []
    assert [text.count("UNKNOWN_SERVER_ERROR") for text in caplog.messages if "orders-0" in text] == [1]


def test_poll_raises_unreadable_reply_and_fetches_again(fake: FakeKafka, consumer: Consumer) -> None:
    fake.edit_replies(FETCH, lambda body: b"\0" * 4, 1)
    consumer.consume_partitions({("orders", 0): 0, ("orders", 1): 0})
    raised = poll_until_read(consumer)
    assert raised
    assert all(isinstance(error, ProtocolError) for error in raised)


def test_range_is_read_after_unknown_server_error(fake: FakeKafka, fake_client: Client) -> None:
    fake.refuse(FETCH, ErrorCode.UNKNOWN_SERVER_ERROR, 2, partition=("orders", 0))
    expected = Range("orders", 0, 0, 5)
    assert len(rows_of(reader(fake_client, [expected]))[expected]) == 5


@pytest.mark.parametrize("refusals", [0, 1])
def test_half_a_reply_of_one_broker_stalls_no_range_of_another(refusals: int) -> None:
    """Also while no request to the other broker is in flight, since a refused one is retried after a back-off."""
    with FakeKafka(2) as kafka:
        kafka.create_topic("orders", 2)
        for number in (0, 1):
            kafka.move_leader("orders", number, number + 1)
            epoch = kafka.controller.topic("orders").partitions[number].leader_epoch
            for first in range(0, 50, 5):
                kafka.write("orders", number, records(first, 5, epoch=epoch, size=20_000))
        kafka.edit_replies(FETCH, lambda body: b"\0\0", 1, broker=2)
        kafka.refuse(FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, refusals, broker=1)
        stalled, healthy = Range("orders", 1, 0, 50), Range("orders", 0, 0, 50)
        with client_of(kafka.bootstrap_servers, request_timeout_ms=30_000) as client:
            reading = iter(reader(client, [stalled, healthy], {"max.partition.fetch.bytes": 1_000}))
            began_s = time.monotonic()
            assert [next(reading)[0] for _ in range(10)] == [healthy] * 10
            assert time.monotonic() - began_s < 15
            kafka.drop_connections(2)
            assert [source_range for source_range, _ in reading] == [stalled] * 10
