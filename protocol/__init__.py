"""A Kafka client for Arrow columns: consumers, groups, producers, transactions and administration, in pure Python.

    import protocol

    table = protocol.read({"bootstrap.servers": "broker-1:9092"}, "orders").read_all()

The names in `__all__` are the public API, with those of `protocol.admin`, `protocol.clouds`, `protocol.metrics` and
`protocol.errors`. All other modules are internal and change without notice. A name is imported when it is first used,
since Spark's Python workers need few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.base.lazy_names import attach

if TYPE_CHECKING:
    from protocol.admin.admin import Admin
    from protocol.cluster.client import Client
    from protocol.consumer.consumer_group import ConsumerGroup
    from protocol.consumer.kafka_consumer import KafkaConsumer
    from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
    from protocol.errors import (
        BrokerError,
        ConfigurationError,
        DataLoss,
        DeadlineExceeded,
        KafkaError,
        ProtocolError,
        SecurityError,
        TransportError,
        UsageError,
    )
    from protocol.fetch.consumer import Consumer
    from protocol.group.assignors.assignor import MemberAssignment
    from protocol.group.assignors.partition_assignor import PartitionAssignor
    from protocol.group.commits.committed_offsets import CommittedOffset
    from protocol.group.commits.offset_manager import OffsetManager
    from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
    from protocol.processing.failures import RetryPolicy
    from protocol.processing.processor import Processor
    from protocol.producer.interceptors import ProducerInterceptor
    from protocol.producer.messages import ProducerMessage
    from protocol.producer.partitioner import by_each_key
    from protocol.producer.producer import Producer
    from protocol.producer.transactional_producer import TransactionalProducer
    from protocol.tables import read, write
    from protocol.version import __version__ as __version__

# Tells this package from others of the same name.
DISTRIBUTION = "spark-kafka-source"

_MODULES = {
    "protocol.admin.admin": "Admin",
    "protocol.cluster.client": "Client",
    "protocol.fetch.consumer": "Consumer",
    "protocol.consumer.consumer_group": "ConsumerGroup",
    "protocol.consumer.kafka_consumer": "KafkaConsumer",
    "protocol.consumer.rebalance_listener": "ConsumerRebalanceListener",
    "protocol.errors": (
        "BrokerError ConfigurationError DataLoss DeadlineExceeded KafkaError ProtocolError SecurityError "
        "TransportError UsageError"
    ),
    "protocol.group.assignors.assignor": "MemberAssignment",
    "protocol.group.assignors.partition_assignor": "PartitionAssignor",
    "protocol.group.commits.committed_offsets": "CommittedOffset",
    "protocol.group.commits.offset_manager": "OffsetManager",
    "protocol.kafka_terms": "EARLIEST LATEST TopicPartition",
    "protocol.processing.failures": "RetryPolicy",
    "protocol.processing.processor": "Processor",
    "protocol.producer.interceptors": "ProducerInterceptor",
    "protocol.producer.messages": "ProducerMessage",
    "protocol.producer.partitioner": "by_each_key",
    "protocol.producer.producer": "Producer",
    "protocol.producer.transactional_producer": "TransactionalProducer",
    "protocol.tables": "read write",
    "protocol.version": "__version__",
}

__all__ = [
    "EARLIEST",
    "LATEST",
    "Admin",
    "BrokerError",
    "Client",
    "CommittedOffset",
    "ConfigurationError",
    "Consumer",
    "ConsumerGroup",
    "ConsumerRebalanceListener",
    "DataLoss",
    "DeadlineExceeded",
    "KafkaConsumer",
    "KafkaError",
    "MemberAssignment",
    "OffsetManager",
    "PartitionAssignor",
    "Processor",
    "Producer",
    "ProducerInterceptor",
    "ProducerMessage",
    "ProtocolError",
    "RetryPolicy",
    "SecurityError",
    "TopicPartition",
    "TransactionalProducer",
    "TransportError",
    "UsageError",
    "by_each_key",
    "read",
    "write",
]


__getattr__, __dir__ = attach(__name__, _MODULES)
