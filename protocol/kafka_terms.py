"""Words and numbers of Kafka's protocol that every folder uses."""

from __future__ import annotations

TopicPartition = tuple[str, int]
"""A topic's name, and the number of one of its partitions."""

LATEST = -1
EARLIEST = -2
"""Where a log ends and begins, for ListOffsets in place of a time; options and Spark's JSON have the same numbers."""

# What stands where there is none, or where it is not known.
NO_TOPIC_ID = bytes(16)
NO_LEADER_EPOCH = -1
NO_REPLICA = -1
NO_PARTITION = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP_MS = -1
