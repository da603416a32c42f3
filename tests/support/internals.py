"""Internals of public classes that tests observe or disturb. Other tests do not use these private attributes."""

from __future__ import annotations

import threading

from protocol.consumer.assigned_partitions import AssignedPartitions
from protocol.consumer.commits import Commits
from protocol.consumer.consumer_group import ConsumerGroup
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.session import ConsumerGroupSession
from protocol.fetch.consumer import Consumer
from protocol.fetch.partition_fetcher import PartitionFetcher
from protocol.group.membership.membership import Membership
from protocol.producer.batch_assembler import BatchAssembler
from protocol.producer.broker_producer import BrokerProducer
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer import Producer
from protocol.producer.sender import Sender


def assembler_of(producer: Producer) -> BatchAssembler:
    """Return the part that turns rows into record batches."""
    return producer._assembler


def sender_of(producer: Producer) -> Sender:
    """Return the part that sends record batches."""
    return producer._sender


def broker_producers_of(producer: Producer) -> list[BrokerProducer]:
    """Return the parts that send to one broker each."""
    return list(sender_of(producer)._brokers.values())


def pending_of(producer: Producer) -> PendingRows:
    """Return the rows without a result."""
    return producer._pending


def thread_of(producer: Producer) -> threading.Thread:
    """Return the thread that sends and receives."""
    return producer._thread._thread


def fetcher_of(consumer: Consumer) -> PartitionFetcher:
    """Return the part that fetches open partitions."""
    return consumer._fetcher


def membership_of(member: KafkaConsumer | ConsumerGroup | ConsumerGroupSession) -> Membership:
    """Return the membership of a consumer that has begun to join."""
    membership = member._membership
    assert membership is not None, "the consumer has not begun to join"
    return membership


def clock_checked_s(membership: Membership) -> float:
    """Return the time at which the membership has last looked at its clock."""
    return membership._checked_s


def commits_of(member: KafkaConsumer | ConsumerGroup) -> Commits:
    """Return the part that commits offsets."""
    return member._commits


def partitions_of(member: KafkaConsumer | ConsumerGroup) -> AssignedPartitions:
    """Return the assigned partitions."""
    return member._partitions
