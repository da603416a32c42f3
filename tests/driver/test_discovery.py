"""When the driver calls a topic deleted, on a clock that only moves by waiting, and with brokers that fall silent."""

from __future__ import annotations

import pytest

from protocol.clock import Deadline
from protocol.errors import ConfigurationError, DeadlineExceeded
from spark_kafka_source.driver.discovery import claim_all, discover
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.backlog import LogSnapshot
from spark_kafka_source.plan.claims import Claims
from spark_kafka_source.plan.offsets import Offsets
from tests.fake_kafka.clock import ManualClock
from tests.protocol.consumer.consuming import TOPIC_ID
from tests.protocol.consumer.test_unknown_topic import KNOWN, NO_LEADER, UNKNOWN, Broker, client_on

HERE = {("orders", 0): TOPIC_ID}


def options_on(broker: Broker) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "orders"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def look(clock: ManualClock, *says: str | float, timeout_ms: int = 240_000) -> dict[tuple[str, int], bytes]:
    """What a trigger finds of a query that has read orders-0."""
    with Broker(clock, *says) as broker, client_on(broker, clock) as client:
        options = parse_source_options(options_on(broker), streaming=True)
        return dict(claim_all(client, options, HERE, Deadline.after_ms(timeout_ms, clock)).owned)


@pytest.mark.parametrize("timeout_ms", [5_000, 240_000])
def test_a_topic_that_stays_unknown_is_gone_after_ten_seconds(clock: ManualClock, timeout_ms: int) -> None:
    assert look(clock, UNKNOWN, timeout_ms=timeout_ms) == {}
    assert 10 < clock.at_s < 13


def test_a_query_in_no_group_owns_all_there_is_and_what_is_gone_is_deleted(clock: ManualClock) -> None:
    """Nobody else has it: what was read of it must not be passed over as if it were revoked."""
    gone = ("orders", 7)
    with Broker(clock, KNOWN, *[KNOWN] * 50) as broker, client_on(broker, clock) as client:
        options = parse_source_options(options_on(broker), streaming=True)
        claims = claim_all(client, options, [*HERE, gone], client.deadline())
    assert claims == Claims(HERE)
    read = Offsets({**dict.fromkeys(HERE, 5), gone: 5})
    assert LogSnapshot(read, claims, {}).deleted() == [gone]
    assert 10 < clock.at_s < 13


FOR_A_WHILE = [UNKNOWN] * 10
"""With the back-off between them some 6 s."""


@pytest.mark.parametrize(
    "says",
    [
        [UNKNOWN, 30.0, UNKNOWN, KNOWN],
        [UNKNOWN, 12.0, UNKNOWN, 12.0, UNKNOWN, KNOWN],
        [*FOR_A_WHILE, 30.0, UNKNOWN, UNKNOWN, KNOWN],
        [*FOR_A_WHILE, KNOWN],
    ],
    ids=["two answers", "a cluster that comes and goes", "one that was away", "at last"],
)
def test_a_topic_that_comes_back_is_not_taken_for_deleted(clock: ManualClock, says: list[str | float]) -> None:
    assert look(clock, *says) == HERE


def test_brokers_that_answer_once_in_a_while_are_not_believed(clock: ManualClock) -> None:
    with pytest.raises(DeadlineExceeded, match="topic orders"):
        look(clock, *[20.5, UNKNOWN] * 11, UNKNOWN)  # the time is over while no answer is under way
    assert clock.at_s < 300


def test_a_new_query_is_told_of_a_topic_that_is_not_there(clock: ManualClock) -> None:
    with Broker(clock, UNKNOWN) as broker, client_on(broker, clock) as client:
        options = parse_source_options(options_on(broker), streaming=True)
        with pytest.raises(ConfigurationError, match=r"unknown topic\(s\) orders"):
            discover(client, options, client.deadline())
    assert 10 < clock.at_s < 13


def test_a_partition_without_a_leader_is_there(clock: ManualClock) -> None:
    assert look(clock, NO_LEADER) == HERE
    assert clock.at_s == 0
