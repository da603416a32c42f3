"""Producer ids, epochs, and the sequence numbers of partitions.

`Sequences` numbers the records of one partition; used by `partition_producer`. A `ProducerSession` provides the
identity: none for `AnonymousSession`, one from a broker for `IdempotentSession`, or that of a transaction
(`transaction_session`); used by `sender`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from protocol.base.clock import Deadline
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.errors import KafkaError
from protocol.kafka_terms import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID

_LAST_SEQUENCE = 0x7FFFFFFF
_LAST_EPOCH = 0x7FFF
_NO_TRANSACTION_TIMEOUT_MS = 0x7FFFFFFF


@dataclass(frozen=True)
class ProducerIdentity:
    """Producer id and epoch. Both are -1 for a producer without idempotence."""

    producer_id: int
    producer_epoch: int


ANONYMOUS = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence number after `count` records; it wraps from 2147483647 to 0."""
    return (sequence + count) & _LAST_SEQUENCE


def comes_before(sequence: int, following: int) -> bool:
    """Return True if `sequence` was assigned before `following`, allowing for wrap-around."""
    return 0 < (following - sequence) & _LAST_SEQUENCE <= _LAST_SEQUENCE // 2


class Sequences:
    """Sequence numbers of one partition under one identity.

    `confirmed` is True after the first acknowledgement. Until then only one batch may be in flight: a broker accepts
    any first number of an unknown identity, so a second batch would be written although the first one failed. (The same
    applies without idempotence, since brokers briefly refuse writes to a new topic.)
    """

    __slots__ = ("confirmed", "identity", "next")

    def __init__(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next = 0
        self.confirmed = False

    def take(self, count: int) -> int:
        """Assign numbers to the next `count` records; return the first number."""
        if self.identity == ANONYMOUS:
            return NO_SEQUENCE
        first, self.next = self.next, sequence_after(self.next, count)
        return first


class ProducerSession(Protocol):
    """Provides identities, and the transactional fields of Produce requests."""

    @property
    def transactional_id(self) -> str | None:
        """Included in every Produce request; if not None, record batches are marked as transactional."""

    @property
    def last_produce_version(self) -> int | None:
        """Newest version of Produce to use; None for no limit (KIP-890 changes the meaning of newer versions)."""

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        """Return the identity for partitions not written yet. May send a request; raises as `Client.retrying`."""

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        """Return the identity with which a partition restarts at sequence 0 after a gap under `before`.

        Raises if that would lose records written under `before` (an open transaction).
        """

    def before_produce(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Prepare to send records to these partitions; a transaction adds the new ones."""

    def failed(self, error: KafkaError) -> None:
        """Take note that a write has failed; a transaction can then only be aborted."""


class AnonymousSession:
    """A session without idempotence: a retry may write duplicates."""

    transactional_id: str | None = None
    last_produce_version: int | None = None

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        """Return producer id and epoch -1."""
        return ANONYMOUS

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        """Return producer id and epoch -1."""
        return ANONYMOUS

    def before_produce(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Do nothing."""

    def failed(self, error: KafkaError) -> None:
        """Do nothing."""


class IdempotentSession(AnonymousSession):
    """One producer id for the life of a producer, requested on first use.

    A broker keeps epochs per partition and lets an idempotent producer bump them itself (KIP-360). After a gap, only
    that partition gets the next epoch. All others keep theirs, since their batches in flight have an unknown outcome
    and must not be written twice.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._identity: ProducerIdentity | None = None

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        """Return the producer id and its first epoch."""
        if self._identity is None:
            body = {"transactional_id": None, "transaction_timeout_ms": _NO_TRANSACTION_TIMEOUT_MS}
            reply = call(self._client, INIT_PRODUCER_ID, body, deadline)
            self._identity = ProducerIdentity(reply["producer_id"], reply["producer_epoch"])
        return self._identity

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        """Return the next epoch, or another producer id after the last epoch."""
        if before.producer_epoch < _LAST_EPOCH:
            return ProducerIdentity(before.producer_id, before.producer_epoch + 1)
        if self._identity is not None and self._identity.producer_id == before.producer_id:
            self._identity = None
        return self.identity(deadline)
