"""The batch source: `spark.read`, from `startingOffsets` to `endingOffsets` (or times), resolved once on the driver.

A batch read commits nothing: nobody tells a source whether the job that used its rows succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import BrokerError, ConfigurationError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.clients import client_for
from spark_kafka_source.driver.discovery import discover, leaders, retry_unknown_topics
from spark_kafka_source.driver.start_offsets import ending_offsets, first_at_or_after, starting_offsets
from spark_kafka_source.error_classes import RESOLVED_START_AFTER_END, named
from spark_kafka_source.options.partitions import name
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.filters import Wanted, narrow
from spark_kafka_source.plan.offsets import Offsets, topic_ids
from spark_kafka_source.plan.range_groups import groups
from spark_kafka_source.plan.ranges import offset_ranges
from spark_kafka_source.remedies import with_remedies
from spark_kafka_source.task.input_partition import RangePartition
from spark_kafka_source.task.range_reader import read_range


class KafkaBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = Wanted()
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def narrow(self, filters: Iterable[Any]) -> list[Any]:
        """Takes what narrows the ranges; returns those filters that Spark still has to check."""
        self._wanted, unchecked = narrow(self._wanted, filters)
        return unchecked

    @with_remedies()
    def partitions(self) -> Sequence[RangePartition]:
        """The tasks: what lies between the two offsets of each partition, as far as the query's filters want it.

        Raises `ConfigurationError` for offsets that do not fit the log or each other, `DeadlineExceeded` when no
        broker answers.
        """
        client, options = client_for(self._options.client), self._options
        deadline = client.deadline(options.offsets_timeout_ms)
        return retry_unknown_topics(client, lambda: self._plan(client, deadline), deadline)

    def _plan(self, client: Client, deadline: Deadline) -> Sequence[RangePartition]:
        options = self._options
        found = discover(client, options, deadline)
        begins = starting_offsets(client, options, found, deadline)
        ends = ending_offsets(client, options, found, deadline)
        if options.end == "latest":
            # An open transaction may hold back all that comes after a group's offset: then there is nothing to read.
            ends = {key: max(end, begins[key]) for key, end in ends.items()}
        _require_order(begins, ends)
        begins, ends = self._wanted.cut(begins, ends)
        if self._wanted.from_time_ms is not None:
            begins = self._from_time(self._wanted.from_time_ms, begins, ends, deadline)
        ids = topic_ids(found)
        ranges = offset_ranges(
            Offsets(begins, ids=ids),
            Offsets(ends, ids=ids),
            max_records=options.max_records_per_partition,
            min_partitions=options.min_partitions,
        )
        led_by = {} if options.max_input_partitions is None else leaders(client, ends, deadline)
        return [RangePartition(group) for group in groups(ranges, options.max_input_partitions, led_by)]

    def _from_time(
        self, time_ms: int, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """Where to begin when only records from a time on are wanted; Spark checks the times themselves."""
        client = client_for(self._options.client)
        try:
            found = first_at_or_after(client, self._options, dict.fromkeys(ends, time_ms), deadline)
        except BrokerError as error:
            if error.code != ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                raise
            # Logs from before Kafka 0.10 have no times to look for.
            return begins
        return {key: min(max(begins[key], found.get(key, ends[key])), ends[key]) for key in ends}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of one task."""
        # Spark makes up an empty partition when there is none to read.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, partition.ranges)


class _PushFilters:
    """The `pushFilters` of a reader (PySpark 4.1 and later), which passes for the one that every reader inherits.

    PySpark fails every batch read, with or without filters, when a reader overrides `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is false, as it is by default. It looks at `__func__` for that.
    """

    def __init__(self, reader: KafkaBatchReader) -> None:
        self._reader = reader
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._reader.narrow(filters)


def _require_order(begins: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
    wrong = [key for key in begins if begins[key] > ends[key]]
    if wrong:
        key = sorted(wrong)[0]
        raise ConfigurationError(
            named(
                RESOLVED_START_AFTER_END,
                f"{name(key)} would be read from offset {begins[key]}, which lies after offset {ends[key]}, where it "
                "would end: correct the option that says where to start or the one that says where to end",
            )
        )
