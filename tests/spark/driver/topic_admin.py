"""Change topics and groups with librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec

from protocol.broker_errors import ErrorCode
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_until import wait_until

# A longer interval, because each check sends requests.
wait_for = partial(wait_until, timeout_s=60, every_s=0.05)

_NO_COORDINATOR = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def admin(kafka: LocalKafka) -> AdminClient:
    return _admin(kafka.bootstrap_servers)


@lru_cache(maxsize=1)
def _admin(servers: str) -> AdminClient:
    # cached: the futures of a garbage-collected client never complete
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def produce(
    kafka: LocalKafka, topic: str, value: str, records: int, *, partition: int = 0, timestamp_ms: int = 0
) -> None:
    """Write records with the values `value`0, `value`1, …; without `timestamp_ms` the time is now."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "linger.ms": 0})
    for number in range(records):
        producer.produce(topic, f"{value}{number}", partition=partition, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def delete_records(kafka: LocalKafka, topic: str, before: int) -> None:
    expected = TopicPartition(topic, 0, before)
    for deleted in admin(kafka).delete_records([expected]).values():
        assert deleted.result(30).low_watermark == before


def set_topic(kafka: LocalKafka, topic: str, settings: Mapping[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for altered in admin(kafka).incremental_alter_configs([resource]).values():
        altered.result(30)


def offset_at(kafka: LocalKafka, topic: str, where: OffsetSpec) -> int:
    [listed] = admin(kafka).list_offsets({TopicPartition(topic, 0): where}).values()
    return listed.result(30).offset


def committed(kafka: LocalKafka, group: str, topic: str, partition: int = 0) -> int | None:
    """Return None while the group's coordinator is unavailable: librdkafka does not retry."""
    partitions = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    [answer] = admin(kafka).list_consumer_group_offsets([partitions]).values()
    try:
        return answer.result(30).topic_partitions[0].offset
    except KafkaException as error:
        if error.args[0].code() not in _NO_COORDINATOR:
            raise
        return None


def commit(kafka: LocalKafka, group: str, topic: str, offset: int) -> None:
    """Commit until it succeeds: a coordinator that does not know a new topic yet refuses the row, not the call."""
    partitions = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])

    def taken() -> bool:
        [altered] = admin(kafka).alter_consumer_group_offsets([partitions]).values()
        [row] = altered.result(30).topic_partitions
        return row.error is None

    wait_for(taken)
