"""Words and numbers of Kafka's protocol that every folder uses."""

from __future__ import annotations

TopicPartition = tuple[str, int]
"""A topic's name, and the number of one of its partitions."""

LATEST = -1
EARLIEST = -2
"""The log end and the log start, for ListOffsets in place of a timestamp; Spark's JSON has the same numbers."""
MAX_TIMESTAMP = -3
"""The record with the newest timestamp, for ListOffsets (KIP-734)."""
EARLIEST_LOCAL = -4
"""The first offset on the broker's own disks, for ListOffsets of topics with tiered storage (KIP-405)."""

# What stands where there is none, or where it is not known.
NO_TOPIC_ID = bytes(16)
NO_LEADER_EPOCH = -1
NO_REPLICA = -1
NO_PARTITION = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP_MS = -1
