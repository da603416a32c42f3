"""The end of a batch in a checkpoint, from mappings by partition."""

from collections.abc import Mapping
from typing import Any

from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition
from protocol.position import Position
from spark_kafka_source.plan.offsets import Offsets


def batch_end(
    ends: Mapping[TopicPartition, int],
    ids: Mapping[str, bytes] | None = None,
    epochs: Mapping[TopicPartition, int] | None = None,
    **facts: Any,
) -> Offsets:
    ids, epochs = ids or {}, epochs or {}
    positions = {
        key: Position(end, epochs.get(key, NO_LEADER_EPOCH), topic_id=ids.get(key[0], NO_TOPIC_ID))
        for key, end in ends.items()
    }
    return Offsets(positions, ids, **facts)


def epochs_of(offsets: Offsets) -> dict[TopicPartition, int]:
    return {key: position.leader_epoch for key, position in offsets.positions.items() if position.leader_epoch >= 0}
