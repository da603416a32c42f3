"""Who a producer is to the brokers (producer id and epoch), and how it numbers what it writes to one partition.

`Sequences` is pure: numbers of one partition under one identity. A `ProducerSession` says which identity that is:
`AnonymousSession` has none, `IdempotentSession` asks a broker for one, and `transaction_session` has a third kind. Used
by `partition_producer` (numbers) and `sender` (session). Knows nothing of queues, retries or Produce requests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from protocol.clock import Deadline
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
    """What a broker knows a producer by. Both are -1 for a producer that is not idempotent."""

    producer_id: int
    producer_epoch: int


ANONYMOUS = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number `count` records further on; it goes from 2147483647 back to 0."""
    return (sequence + count) & _LAST_SEQUENCE


def comes_before(sequence: int, other: int) -> bool:
    """Whether that number was given out before the other one, both not long ago."""
    return 0 < (other - sequence) & _LAST_SEQUENCE <= _LAST_SEQUENCE // 2


class Sequences:
    """Sequence numbers of one partition. `confirmed` once a broker has acknowledged one under this identity.

    A broker that has never seen the identity takes any number as the first, so a second record batch must not be
    under way before the first is acknowledged: should the first fail, the second would be written without it. (That
    is also kept up without idempotence: right after a topic was made, its brokers refuse for a moment.)
    """

    __slots__ = ("confirmed", "identity", "next")

    def __init__(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next = 0
        self.confirmed = False

    def take(self, count: int) -> int:
        """The number of the first of the next `count` records."""
        if self.identity == ANONYMOUS:
            return NO_SEQUENCE
        first, self.next = self.next, sequence_after(self.next, count)
        return first


class ProducerSession(Protocol):
    """Where identities come from, and what a Produce request has to say about a transaction."""

    @property
    def transactional_id(self) -> str | None:
        """Goes into every Produce request; record batches are marked transactional if it is not None."""

    @property
    def last_produce_version(self) -> int | None:
        """The newest version of Produce to speak, None: as new as both sides can (KIP-890 changes its meaning)."""

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        """The identity for partitions not written to so far. May ask a broker; raises what `Client.retrying` does."""

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        """The identity under which a partition counts from 0 again, when its numbering under `before` broke off.

        Raises when that cannot be done without losing what was written under `before` (an open transaction).
        """

    def before_produce(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Called before records go to these partitions; a transaction adds those that are new to it."""

    def failed(self, error: KafkaError) -> None:
        """Called when records could not be written; a transaction must not be committed then."""


class AnonymousSession:
    """No idempotence: a retry may write twice."""

    transactional_id: str | None = None
    last_produce_version: int | None = None

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        return ANONYMOUS

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        return ANONYMOUS

    def before_produce(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        pass

    def failed(self, error: KafkaError) -> None:
        pass


class IdempotentSession(AnonymousSession):
    """One producer id for the life of a producer, asked for when it is first needed.

    Epochs belong to partitions here: a broker keeps them per partition and lets an idempotent producer raise them
    itself (KIP-360). So a partition whose numbering broke off takes the next epoch alone; all others, whose record
    batches may be under way with an unknown outcome, keep theirs, and nothing of them is written twice.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._identity: ProducerIdentity | None = None

    def identity(self, deadline: Deadline) -> ProducerIdentity:
        if self._identity is None:
            body = {"transactional_id": None, "transaction_timeout_ms": _NO_TRANSACTION_TIMEOUT_MS}
            reply = call(self._client, INIT_PRODUCER_ID, body, deadline)
            self._identity = ProducerIdentity(reply["producer_id"], reply["producer_epoch"])
        return self._identity

    def successor(self, before: ProducerIdentity, deadline: Deadline) -> ProducerIdentity:
        if before.producer_epoch < _LAST_EPOCH:
            return ProducerIdentity(before.producer_id, before.producer_epoch + 1)
        if self._identity is not None and self._identity.producer_id == before.producer_id:
            self._identity = None
        return self.identity(deadline)
