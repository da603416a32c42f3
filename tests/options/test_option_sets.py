"""Options of public notebooks are accepted, with a warning if they have no effect."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.types import StructType

from spark_kafka_source import foreach_batch_writer
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.source import KafkaGroupDataSource
from tests.options.option_sets import BROKERS, OPTION_SETS, OTHER, PATTERN, READS, SINKS, TOPIC, OptionSet, filled
from tests.support.small_cluster import SmallCluster


def parse(option_set: OptionSet) -> object:
    options = filled(option_set, {BROKERS: "localhost:9092", TOPIC: "orders", OTHER: "bills", PATTERN: "^o"})
    return (
        parse_sink_options(options)
        if option_set.use == "sink"
        else parse_source_options(options, streaming=option_set.use == "stream")
    )


@pytest.mark.parametrize("option_set", OPTION_SETS, ids=lambda option_set: option_set.name)
def test_option_set_is_accepted_with_one_warning_per_idle_option(
    option_set: OptionSet, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        parse(option_set)
        parse(option_set)
    assert sorted(message.split()[0] for message in caplog.messages) == sorted(option_set.warnings)


def test_option_sets_are_many_and_of_each_kind() -> None:
    assert len({option_set.name for option_set in OPTION_SETS}) == len(OPTION_SETS) >= 35
    assert len(READS) >= 20
    assert len(SINKS) >= 8


def test_running_reader_alone_warns_of_idle_options(caplog: pytest.LogCaptureFixture) -> None:
    """Spark also creates readers only to plan with, each in a separate process."""
    with SmallCluster() as cluster, caplog.at_level(logging.WARNING):
        where = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
        options = {**where, "startingOffsets": "earliest", "mode": "x", "kafka.colour": "y"}
        sources = [KafkaGroupDataSource(options) for _ in range(2)]
        readers = [source.streamReader(source.schema()) for source in sources]
        assert caplog.messages == []
        for _ in range(2):
            readers[0].latestOffset(readers[0].initialOffset(), readers[0].getDefaultReadLimit())
    assert [message.split()[0] for message in caplog.messages] == ["mode", "kafka.colour"]


def test_committing_writer_alone_warns_of_idle_options(caplog: pytest.LogCaptureFixture) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "mode": "x", "kafka.colour": "y"}
    schema = StructType().add("value", "string")
    with caplog.at_level(logging.WARNING):
        _planned, committing = (KafkaGroupDataSource(options).streamWriter(schema, False) for _ in range(2))
        assert caplog.messages == []
        committing.abort([None], 0)
        committing.commit([], 0)
    assert [message.split()[0] for message in caplog.messages] == ["mode", "kafka.colour"]


def test_foreach_batch_function_warns_in_its_batches(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        foreach_batch_writer({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "mode": "x"})
    assert caplog.messages == []
