"""A task's rack, the columns that it adds to the records of a range, and its dead letters."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from protocol.base import once
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError
from protocol.fetch.log_offsets import Range
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.record_batches import Batch, Record, write_batch
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.task import range_reader


def column(name: str, expected: Range, rows: int) -> pa.Array:
    return range_reader.spark_column(name, pa.record_batch({"offset": pa.array(range(rows), pa.int64())}), expected)


@pytest.mark.parametrize("length", [1, 60, 249])
@pytest.mark.parametrize("rows", [1, 5, 16_000])
def test_topic_and_partition_columns_repeat_for_each_row(length: int, rows: int) -> None:
    expected = Range("t" * length, 7, from_offset=0, until_offset=rows)
    assert column("topic", expected, rows).equals(pa.array([expected.topic] * rows))
    assert column("partition", expected, rows).equals(pa.array([7] * rows, pa.int32()))


def test_cached_columns_of_long_topic_names_need_little_memory() -> None:
    """Slow: the tracer follows each allocation of 320 columns."""
    topics = [Range(f"{number:03}" + "t" * 246, number, from_offset=0, until_offset=1) for number in range(40)]
    column("topic", topics[0], 1)  # pyarrow imports pandas at its first array
    tracemalloc.start()
    try:
        for topic in topics:
            for rows in (100, 2_000, 8_000, 16_000):
                column("topic", topic, rows)
                column("partition", topic, rows)
        pending, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pending < 20 << 20


# -- `kafka.client.rack`: a literal value, or an environment variable of the executor ------------------


@pytest.mark.parametrize("rack", ["", "eu-1a", "environment"])
def test_rack_without_env_prefix_is_literal(rack: str) -> None:
    assert range_reader.resolve_client_rack(ConsumerConfig(client_rack=rack)).client_rack == rack


def test_rack_variable_is_read_on_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ConsumerConfig(client_rack="env:MY_RACK", fetch_min_bytes=7)
    for rack in ("eu-1a", "eu-1b"):
        monkeypatch.setenv("MY_RACK", rack)
        assert range_reader.resolve_client_rack(config) == ConsumerConfig(client_rack=rack, fetch_min_bytes=7)


def test_rack_with_unset_variable_is_empty_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    once.reset()
    monkeypatch.delenv("MY_RACK", raising=False)
    assert range_reader.resolve_client_rack(ConsumerConfig(client_rack="env:MY_RACK")).client_rack == ""
    assert "kafka.client.rack is env:MY_RACK, which is not set here" in caplog.text


NUMBER = json.dumps("long")
VALID, INVALID = b"\x02", b"\xff"


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("orders")
        running.create_topic("dead")
        yield running
    PROCESS.reset()


def with_dead_letters(fake: FakeKafka) -> SourceOptions:
    from spark_kafka_source.driver.reader_schemas import with_schemas

    options = {"valueFormat": "avro", "valueSchema": NUMBER, "onDecodeError": "dead-letter", "deadLetterTopic": "dead"}
    options |= {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "orders"}
    return with_schemas(parse_source_options(options, streaming=True))


def values(fake: FakeKafka, end: int) -> list[int]:
    rows = range_reader.read_range(with_dead_letters(fake), [Range("orders", 0, from_offset=0, until_offset=end)])
    return [value for batch in rows for value in batch["value"].to_pylist()]


@pytest.mark.parametrize("code", ["TOPIC_AUTHORIZATION_FAILED", "MESSAGE_TOO_LARGE"])
def test_refused_dead_letter_fails_the_task(fake: FakeKafka, code: str) -> None:
    fake.produce("orders", VALID, INVALID)
    fake.refuse("Produce", code)
    with pytest.raises(BrokerError, match=code):
        values(fake, 2)
    assert values(fake, 2) == [1]
    assert [record.value for record in fake.records("dead")] == [INVALID]


def test_dead_letter_larger_than_a_mebibyte_is_written(fake: FakeKafka) -> None:
    for topic in ("wide", "dead-wide"):
        fake.create_topic(topic, config={"max.message.bytes": "4000000"})
    fake.produce("wide", INVALID * (3 << 20))
    options = replace(with_dead_letters(fake), dead_letter_topic="dead-wide")
    rows = range_reader.read_range(options, [Range("wide", 0, from_offset=0, until_offset=1)])
    assert sum(batch.num_rows for batch in rows) == 0
    assert [len(record.value or b"") for record in fake.records("dead-wide")] == [3 << 20]


def test_dead_letter_keeps_key_headers_and_timestamp(fake: FakeKafka) -> None:
    fake.produce("orders", INVALID, key="k", headers=[("h", b"1"), ("null", None)], timestamp_ms=5)
    fake.write("orders", 0, write_batch(Batch([Record(INVALID)], 1, first_timestamp=-1, max_timestamp=-1)))
    began_ms = fake.clock.wall_ms()
    assert values(fake, 2) == []
    first, second = fake.records("dead")
    assert (first.key, first.timestamp_ms, first.headers[:2]) == (b"k", 5, [("h", b"1"), ("null", None)])
    assert second.key is None
    assert second.timestamp_ms >= began_ms, "a record without a timestamp gets the present time"
