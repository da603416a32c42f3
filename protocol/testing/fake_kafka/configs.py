"""Settings of brokers, and Kafka's topic configurations, with their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Refused

DEFAULT_SETTINGS = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "9000",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "group.min.session.timeout.ms": "1000",
    "log.retention.check.interval.ms": "-1",
    "max.incremental.fetch.session.cache.slots": "1000",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "num.partitions": "1",
    "offset.metadata.max.bytes": "4096",
    "process.roles": "",
    "transaction.max.timeout.ms": "900000",
    "transaction.version": "2",
}
"""Defaults by Kafka's names for brokers, topics and features, as in `conf/kafka-broker.properties` if it has them.

`process.roles` is `broker` for a cluster without ZooKeeper. `log.retention.check.interval.ms` is -1: retention and
compaction run only in `clean_logs`.
"""

TOPIC_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Kafka's topic configurations. The model acts on the cleanup policy, the retention ones, `delete.retention.ms`,
`max.message.bytes`, `message.timestamp.type` and `min.insync.replicas`; it only stores the others."""


def check_topic_config(names: Iterable[str]) -> None:
    """Raise `Refused` for a name that is no topic configuration."""
    for name in names:
        if name not in TOPIC_DEFAULTS:
            message = f"Unknown topic config name: {name}"
            raise Refused(ErrorCode.INVALID_CONFIG, error_message=message)


def topic_config(settings: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's whole configuration: its own, else the brokers', else Kafka's default."""
    return {**{name: settings.get(name, default) for name, default in TOPIC_DEFAULTS.items()}, **own}
