"""A whole topic as one table."""

from __future__ import annotations

import pytest

from protocol.config import ConsumerConfig
from protocol.consumer.read_topic import read_topic
from protocol.errors import UsageError
from protocol.records.decode import SCHEMA
from protocol.wire.messages.m01_fetch import FETCH
from tests.protocol.consumer.consuming import client_of
from tests.ten_records import END, TenRecords


def test_the_table_has_all_partitions_in_order_with_their_numbers() -> None:
    with TenRecords() as fake, client_of(fake.bootstrap_servers) as client:
        fake.grow(5)
        table = read_topic(client, "orders", columns=["value", "offset"])
    assert table.column_names == ["topic", "partition", "value", "offset"]
    assert table["topic"].unique().to_pylist() == ["orders"]
    both = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    assert list(both) == [(partition, offset) for partition in (0, 1) for offset in range(END + 5)]


def test_a_live_topic_is_read_to_its_end_at_the_call() -> None:
    with TenRecords() as fake, client_of(fake.bootstrap_servers) as client:
        fake.before[FETCH] = lambda body: fake.grow(1)
        assert read_topic(client, "orders").num_rows == 2 * END


def test_an_empty_topic_is_a_table_without_rows_and_with_all_columns() -> None:
    with TenRecords() as fake, client_of(fake.bootstrap_servers) as client:
        fake.create_topic("empty", 2)
        table = read_topic(client, "empty", ConsumerConfig(isolation_level="read_committed"))
    assert (table.num_rows, table.schema.names) == (0, ["topic", "partition", *SCHEMA.names])


def test_an_unknown_column_is_refused() -> None:
    with TenRecords() as fake, client_of(fake.bootstrap_servers) as client, pytest.raises(UsageError, match="colour"):
        read_topic(client, "orders", columns=["colour"])
