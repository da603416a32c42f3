"""The batch source: `spark.read`, from `startingOffsets` to `endingOffsets` (or times), resolved once on the driver.

A batch read commits nothing: Spark does not tell a source whether the job succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import DataSourceReader

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import ConfigurationError
from protocol.kafka_terms import TopicPartition
from protocol.position import Position
from spark_kafka_source.driver.discovery import (
    leader_ids,
    partitions_of_new_query,
    require_dead_letter_topic,
    retry_unknown_topics,
)
from spark_kafka_source.driver.start_offsets import ending_offsets, starting_offsets
from spark_kafka_source.error_messages import RESOLVED_START_AFTER_END, with_error_class, with_remedies
from spark_kafka_source.options.partitions import partition_name
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.plan.ranges import group_ranges, offset_ranges, pruned_ranges
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.task.range_reader import RangePartition, RangeReader


class KafkaBatchReader(RangeReader, DataSourceReader):
    """The reader of a batch query: plans on the driver; executors get a `RangeReader`.

    It takes no filters: docs/decisions/0006-filter-pushdown.md.
    """

    @with_remedies()
    def partitions(self) -> Sequence[RangePartition]:
        """Plan the tasks: the offsets of each partition from its start to its end. Spark calls this once per `load()`.

        Raises `ConfigurationError`: offsets are not in the log, or a start is after its end. `DeadlineExceeded`: no
        broker answers.
        """
        client, options = PROCESS.client(self._options.client), self._options
        deadline = client.deadline(options.offsets_timeout_ms)
        require_dead_letter_topic(client, options, deadline)
        return retry_unknown_topics(client, lambda: self._plan(client, deadline), deadline)

    def _plan(self, client: Client, deadline: Deadline) -> Sequence[RangePartition]:
        options = self._options
        partitions = partitions_of_new_query(client, options, deadline)
        starts = starting_offsets(client, options, partitions, deadline)
        ends, at_log_end = ending_offsets(client, options, partitions, deadline)
        # With an open transaction, the last stable offset may be before the start.
        ends |= {key: max(ends[key], starts[key].offset) for key in at_log_end}
        _require_order(starts, ends)
        ranges = offset_ranges(
            Offsets.at({key: start.assumed_in(partitions[key]) for key, start in starts.items()}),
            Offsets.at({key: Position(offset, topic_id=partitions[key]) for key, offset in ends.items()}),
            max_records=options.max_records_per_partition,
            min_partitions=options.min_partitions,
        )
        ranges = pruned_ranges(options.condition, ranges)
        leaders = {} if options.max_input_partitions is None else leader_ids(client, ends, deadline)
        return [RangePartition(group) for group in group_ranges(ranges, options.max_input_partitions, leaders)]


def _require_order(starts: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, int]) -> None:
    reversed_ranges = [key for key in starts if starts[key].offset > ends[key]]
    if reversed_ranges:
        key = sorted(reversed_ranges)[0]
        raise ConfigurationError(
            with_error_class(
                RESOLVED_START_AFTER_END,
                f"{partition_name(key)} would be read from offset {starts[key].offset}, which is after its end, offset "
                f"{ends[key]}: correct the starting or the ending option",
            )
        )
