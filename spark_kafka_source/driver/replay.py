"""What `partitions` asks brokers when an older version, Spark's own connector or an earlier run has planned a batch.

What this version has planned it replays from its two offsets; with `failOnDataLoss=false` it only counts what is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from protocol.cluster.metadata import is_another_topic
from protocol.consumer.log_offsets import Range
from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.driver.discovery import claim_all, retry_unknown_topics
from spark_kafka_source.driver.query_state import QueryState
from spark_kafka_source.driver.start_offsets import log_starts
from spark_kafka_source.options.partitions import name
from spark_kafka_source.plan import data_loss
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.plan.ranges import unresolved
from spark_kafka_source.remedies import in_options

log = logging.getLogger(__name__)

# What was missing of a replayed batch is not worth a longer wait.
_COUNT_MS = 5_000


def first_begin(query: QueryState, end: Offsets) -> Offsets:
    """The start of a first batch: `end` says where its partitions begin, or an older version has written it."""
    if unresolved(Offsets({}), end):
        log.warning("the checkpoint does not say where the first batch begins: at startingOffsets as they are now")
        begin = query.starting_offsets(query.deadline())
        late = data_loss.starts_after_end(begin, end)
        data_loss.raise_or_warn(late.values(), fail=query.options.fail_on_data_loss)
        return replace(begin, ends={**begin.ends, **{key: end.ends[key] for key in late}})
    if not query.running:
        log.warning("the first batch is not complete: it is read again from where it began, not startingOffsets")
    return Offsets({})


def earliest(query: QueryState, partitions: Collection[TopicPartition], end: Offsets) -> dict[TopicPartition, int]:
    """Where new partitions begin of a batch that Spark's own connector has planned: at its end if they are gone."""
    deadline = query.deadline()

    def look() -> dict[TopicPartition, int]:
        owned = claim_all(query.client, query.options, partitions, deadline).owned
        return log_starts(query.client, [key for key in partitions if key in owned], deadline)

    starts = retry_unknown_topics(query.client, look, deadline)
    gone = sorted(set(partitions) - starts.keys())
    data_loss.raise_or_warn(data_loss.deleted_unread(gone), fail=query.options.fail_on_data_loss)
    return starts | {key: end.ends[key] for key in gone}


def count_lacking(query: QueryState, ranges: Sequence[Range]) -> dict[TopicPartition, int]:
    """What is missing of a batch that another run has planned, for the next one to count, an empty one if need be.

    The tasks leave it out and log it. So it is when a query has failed because of that, and goes on with
    `failOnDataLoss=false`. What a topic had that was recreated is in no count.
    """
    deadline = query.client.deadline(_COUNT_MS)
    try:
        topics = query.client.metadata({one.topic for one in ranges}, deadline).topics
        known = {(topic.name, number) for topic in topics.values() for number in topic.partitions}
        if unknown := sorted({one.topic_partition for one in ranges} - known):
            log.warning("unknown just now, so that nobody counts what is missing: %s", ", ".join(map(name, unknown)))
        there = [one for one in ranges if one.topic_partition in known]
        there = [one for one in there if not is_another_topic(topics[one.topic].topic_id, one.topic_id)]
        starts = log_starts(query.client, {one.topic_partition for one in there}, deadline)
        return data_loss.count_skipped(there, starts)
    except KafkaError as error:
        log.warning("what is missing of the batch that is replayed is not counted: %s", in_options(error))
        return {}
