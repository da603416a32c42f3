"""When a bounded read treats a topic as deleted, on a clock that only waiting advances.

Skipped records are lost to the query. So brokers must report the topic as unknown repeatedly, and consecutively.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig, parse_client
from protocol.errors import DataLoss, DeadlineExceeded
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.controller import NO_LEADER as NO_LEADER_ID
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.fetch.consuming import TOPIC_ID, records, skip_loss

UNKNOWN, KNOWN, NO_LEADER = "unknown", "known", "no leader"
WANTED = Range("orders", 0, 5, 15)


class Broker(FakeKafka):
    """Leads orders-0 with offsets 5 to 15; Metadata replies follow `says` in turn, the last repeated.

    A number means no reply: brokers are unreachable for so many seconds before the next reply.
    """

    def __init__(self, clock: ManualClock, *says: str | float, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings=settings)
        self.create_topic("orders", topic_id=TOPIC_ID)
        self.write("orders", 0, records(5, 10))
        self.before[METADATA] = self._next
        # The client waits for the reply by then, whatever its duration.
        self.edit_replies(METADATA, self._late)
        self._waits_on = clock
        self._late_s = 0.0
        self._says = list(says)

    @property
    def looks(self) -> int:
        return len(self.request_bodies(METADATA))

    def _next(self, body: dict[str, Any]) -> None:
        label = self._take()
        if isinstance(label, float):
            self._late_s = label
            label = self._take()
        if label == UNKNOWN:
            self.refuse(METADATA, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.move_leader("orders", 0, NO_LEADER_ID if label == NO_LEADER else 1)

    def _late(self, reply: dict[str, Any]) -> dict[str, Any]:
        late_s, self._late_s = self._late_s, 0.0
        self._waits_on.advance(late_s)
        return reply

    def _take(self) -> str | float:
        return self._says.pop(0) if len(self._says) > 1 else self._says[0]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def client_on(broker: FakeKafka, clock: ManualClock, **properties: object) -> Client:
    return Client(parse_client({"bootstrap.servers": broker.bootstrap_servers, **properties}), clock)


@contextmanager
def reading(
    clock: ManualClock,
    *says: str | float,
    settings: Mapping[str, str] | None = None,
    backoff_ms: int = 100,
    **options: Any,
) -> Iterator[tuple[Broker, BoundedReader]]:
    """Yield a broker, and a reader of its range whose client has known the topic if the first reply does."""
    properties = {"retry.backoff.ms": backoff_ms, "retry.backoff.max.ms": max(backoff_ms, 1_000)}
    with (
        Broker(clock, *says, settings=settings) as broker,
        client_on(broker, clock, **properties) as client,
    ):
        if says[0] == KNOWN:
            client.topic("orders")
            client.expire_metadata(["orders"])
        yield broker, BoundedReader(client, ConsumerConfig(), [WANTED], **options)


def rows(consumer: BoundedReader) -> int:
    return sum(batch.num_rows for _, batch in consumer)


# -- deleted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("poll_timeout_ms", [400, 120_000])
def test_topic_unknown_for_half_a_minute_is_lost(clock: ManualClock, poll_timeout_ms: int) -> None:
    """Also with a shorter poll timeout: a less specific error would be retried forever."""
    with reading(clock, KNOWN, UNKNOWN, poll_timeout_ms=poll_timeout_ms) as (_, reader):
        with pytest.raises(DataLoss, match=r"orders-0: offsets 5 to 15 .* deleted"):
            rows(reader)
        assert 30 < clock.at_s < 33


def test_long_back_off_raises_the_same_error(clock: ManualClock) -> None:
    with reading(clock, UNKNOWN, backoff_ms=60_000) as (_, reader):
        with pytest.raises(DataLoss, match="deleted"):
            rows(reader)
        assert 29 < clock.at_s < 35


@pytest.mark.parametrize(
    ("says", "roles", "least_s", "most_s"),
    [([UNKNOWN], {}, 30, 40), ([KNOWN, UNKNOWN], {"process.roles": "broker"}, 0.5, 2)],
    ids=["half a minute with ZooKeeper", "two seconds with KRaft"],
)
def test_deleted_topic_is_skipped_with_a_loss_handler(
    clock: ManualClock, says: list[str], roles: dict[str, str], least_s: float, most_s: float
) -> None:
    with reading(clock, *says, settings=roles, on_loss=skip_loss) as (_, reader):
        assert rows(reader) == 0
        assert reader.skipped == [WANTED]
        assert least_s <= clock.at_s < most_s


# -- existing topics ------------------------------------------------------------------------------

FOR_A_WHILE = [UNKNOWN] * 25
"""With the back-off of 0.1 to 1 s between them some 22 s."""


@pytest.mark.parametrize(
    "says",
    [
        [UNKNOWN, *[NO_LEADER] * 40, UNKNOWN, KNOWN],
        [UNKNOWN, 30.0, UNKNOWN, 30.0, UNKNOWN, KNOWN],
        [*FOR_A_WHILE, KNOWN],
    ],
    ids=["an election", "a cluster that comes and goes", "the last reply"],
)
def test_topic_that_returns_is_read_completely(clock: ManualClock, says: list[str | float]) -> None:
    with reading(clock, *says, on_loss=skip_loss, poll_timeout_ms=300_000) as (broker, reader):
        assert rows(reader) == 10
        assert reader.skipped == []
        assert broker.looks >= len([text for text in says if isinstance(text, str)]) - 2


def test_leader_without_a_topic_of_the_metadata_is_retried_beyond_the_poll_timeout(clock: ManualClock) -> None:
    """The metadata decide whether the topic is deleted: one of two brokers, the leader, may have forgotten it first."""
    with reading(clock, KNOWN, poll_timeout_ms=1_000) as (broker, reader):
        broker.refuse(FETCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 5)
        assert rows(reader) == 10
        assert clock.at_s > 1


def test_poll_timeout_starts_when_the_topic_is_known(clock: ManualClock) -> None:
    with reading(clock, *FOR_A_WHILE, KNOWN, poll_timeout_ms=2_000) as (_, reader):
        assert rows(reader) == 10
        assert clock.at_s > 20


def test_topic_that_alternates_between_known_and_unknown_ends(clock: ManualClock) -> None:
    with reading(clock, *[UNKNOWN, NO_LEADER] * 200, poll_timeout_ms=20_000) as (_, reader):
        with pytest.raises(DeadlineExceeded, match=r"orders-0 at offset 5 did not succeed in \d+\.\d s") as caught:
            rows(reader)
        spent_s = float(str(caught.value).split(" did not succeed in ")[1].split()[0])
        assert spent_s <= clock.at_s < 60
