"""Types and numbers of Kafka's protocol that all packages use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TopicPartition = tuple[str, int]
"""Topic name and partition number."""

LATEST = -1
EARLIEST = -2
"""Log start and log end as timestamps in ListOffsets; Spark's JSON uses the same numbers."""
MAX_TIMESTAMP = -3
"""The record with the highest timestamp, in ListOffsets (KIP-734)."""
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
"""In ListOffsets of topics with tiered storage: the first offset on the broker's local disks (KIP-405), the last in
remote storage (KIP-1005), the first that is only on local disks (KIP-1023)."""

# Values for "none" or "unknown".
NO_TOPIC_ID = bytes(16)
NO_LEADER_EPOCH = -1
NO_REPLICA = -1
NO_PARTITION = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP_MS = -1

TopicIds = Mapping[TopicPartition, bytes]
"""The id of the topic of each partition."""
NO_TOPIC_IDS: TopicIds = MappingProxyType({})
