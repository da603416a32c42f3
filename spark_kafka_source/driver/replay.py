"""Replay batches planned by an older version, by Spark's own connector or in an earlier run. Runs on the driver.

A batch planned by this version needs only the id of the cluster: its two offsets suffice. With `failOnDataLoss=false`
the lost offsets are counted, too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from protocol.errors import KafkaError
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import TopicPartition
from protocol.position import is_another_topic
from spark_kafka_source.driver.discovery import partitions_of_running_query, retry_unknown_topics
from spark_kafka_source.driver.query_state import QueryState
from spark_kafka_source.driver.start_offsets import log_start_offsets
from spark_kafka_source.error_messages import with_option_names
from spark_kafka_source.options.partitions import partition_names
from spark_kafka_source.plan import data_loss
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.plan.ranges import unresolved

log = logging.getLogger(__name__)

# Limit for counting the lost offsets of a replayed batch.
_COUNT_MS = 5_000


def first_batch_start(query: QueryState, end: Offsets) -> Offsets:
    """Return the start of a query's first batch: empty if `end.joined` has all start offsets.

    An end that an older version or Spark's connector has written lacks some: then the start is resolved again.
    """
    if unresolved(Offsets({}), end):
        log.warning(
            "the checkpoint lacks the start of the first batch: it starts at startingOffsets as they resolve now"
        )
        start = query.starting_offsets(query.deadline())
        late = data_loss.starts_after_end(start, end)
        data_loss.raise_or_warn(late.values(), fail=query.options.fail_on_data_loss)
        return replace(start, positions={**start.positions, **{key: end.positions[key] for key in late}})
    if not query.running:
        log.warning("the first batch is incomplete: it is read again from its recorded start, not from startingOffsets")
    return Offsets({})


def new_partition_starts(
    query: QueryState, partitions: Collection[TopicPartition], end: Offsets
) -> dict[TopicPartition, int]:
    """Return start offsets of new partitions in a batch planned by Spark's own connector; the end if deleted."""
    deadline = query.deadline()

    def find() -> dict[TopicPartition, int]:
        read = {key: end.positions[key] for key in partitions}
        existing = partitions_of_running_query(query.client, query.options, read, deadline)
        return log_start_offsets(query.client, [key for key in partitions if key in existing], deadline)

    starts = retry_unknown_topics(query.client, find, deadline)
    deleted = sorted(set(partitions) - starts.keys())
    data_loss.raise_or_warn(data_loss.deleted_unread(deleted), fail=query.options.fail_on_data_loss)
    return starts | {key: end.ends[key] for key in deleted}


def count_lost(query: QueryState, ranges: Sequence[Range]) -> dict[TopicPartition, int]:
    """Return the number of lost offsets in a batch that another run has planned; the next batch records them.

    The tasks skip these offsets and log them. This happens after a query failed with a data loss, and resumes with
    `failOnDataLoss=false`. Records of a recreated topic are not counted.
    """
    deadline = query.client.deadline(_COUNT_MS)
    try:
        topics = query.client.metadata({source_range.topic for source_range in ranges}, deadline).topics
        keys = {(topic.name, number) for topic in topics.values() for number in topic.partitions}
        if unknown := sorted({source_range.topic_partition for source_range in ranges} - keys):
            log.warning(
                "unknown to the brokers at the moment, so lost offsets are not counted: %s", partition_names(unknown)
            )
        existing = [source_range for source_range in ranges if source_range.topic_partition in keys]
        existing = [
            source_range
            for source_range in existing
            if not is_another_topic(topics[source_range.topic].topic_id, source_range.topic_id)
        ]
        starts = log_start_offsets(query.client, {source_range.topic_partition for source_range in existing}, deadline)
        return data_loss.count_skipped(existing, starts)
    except KafkaError as error:
        log.warning("lost offsets of the replayed batch are not counted: %s", with_option_names(error))
        return {}
