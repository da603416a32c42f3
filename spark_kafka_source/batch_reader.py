"""The batch source: `spark.read`, from `startingOffsets` to `endingOffsets`, resolved once on the driver.

A batch read commits nothing: nobody tells a source whether the job that used its rows succeeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from protocol.errors import ConfigurationError
from spark_kafka_source.clients import client_for
from spark_kafka_source.discovery import discover
from spark_kafka_source.input_partition import RangePartition
from spark_kafka_source.offsets import Offsets, TopicPartition, name
from spark_kafka_source.options import SourceOptions
from spark_kafka_source.range_reader import read_range
from spark_kafka_source.ranges import offset_ranges
from spark_kafka_source.start_offsets import ending_offsets, starting_offsets


class KafkaBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[RangePartition]:
        """One range per partition that has records between the two offsets.

        Raises `ConfigurationError` for offsets that do not fit the log or each other, `DeadlineExceeded` when no
        broker answers.
        """
        client = client_for(self._options.client)
        deadline = client.deadline()
        found = discover(client, self._options, deadline)
        begins = starting_offsets(client, self._options, found, deadline)
        ends = ending_offsets(client, self._options, found, deadline)
        _require_order(begins, ends)
        ids = {topic: topic_id for (topic, _), topic_id in found.items() if any(topic_id)}
        ranges = offset_ranges(
            Offsets(begins, ids=ids), Offsets(ends, ids=ids), min_partitions=self._options.min_partitions
        )
        return [RangePartition(wanted) for wanted in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of one range."""
        # Spark makes up an empty partition when there is none to read.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, [partition.range])


def _require_order(begins: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
    wrong = [key for key in begins if begins[key] > ends[key]]
    if wrong:
        key = sorted(wrong)[0]
        raise ConfigurationError(
            f"startingOffsets of {name(key)} ({begins[key]}) lie after its endingOffsets ({ends[key]}): correct one of "
            "the two options"
        )
