"""Internals of public classes that tests observe or disturb. Other tests do not use these private attributes."""

from __future__ import annotations

from protocol.consumer.consumer import Consumer
from protocol.consumer.partition_fetcher import PartitionFetcher
from protocol.consumer_group.assigned_partitions import AssignedPartitions
from protocol.consumer_group.commits import Commits
from protocol.consumer_group.consumer_group import ConsumerGroup
from protocol.consumer_group.kafka_consumer import KafkaConsumer
from protocol.consumer_group.session import ConsumerGroupSession
from protocol.group.membership.membership import Membership
from protocol.producer.batch_assembler import BatchAssembler
from protocol.producer.incomplete_batches import IncompleteBatches
from protocol.producer.producer import Producer
from protocol.producer.sender import Sender


def assembler_of(producer: Producer) -> BatchAssembler:
    """Return the part that turns rows into record batches."""
    return producer._assembler


def sender_of(producer: Producer) -> Sender:
    """Return the part that sends record batches."""
    return producer._sender


def incomplete_of(producer: Producer) -> IncompleteBatches:
    """Return the batches without an acknowledgement."""
    return producer._incomplete


def fetcher_of(consumer: Consumer) -> PartitionFetcher:
    """Return the part that fetches open partitions."""
    return consumer._fetcher


def membership_of(member: KafkaConsumer | ConsumerGroup | ConsumerGroupSession) -> Membership:
    """Return the membership of a consumer that has begun to join."""
    membership = member._membership
    assert membership is not None, "the consumer has not begun to join"
    return membership


def commits_of(member: KafkaConsumer | ConsumerGroup) -> Commits:
    """Return the part that commits offsets."""
    return member._commits


def partitions_of(member: KafkaConsumer | ConsumerGroup) -> AssignedPartitions:
    """Return the assigned partitions."""
    return member._partitions
