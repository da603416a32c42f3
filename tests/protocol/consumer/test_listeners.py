"""Rebalance listeners that raise or call the consumer: the member continues, and an exception is raised once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

import pytest

from protocol.cluster.client import Client
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import CommitFailed, UsageError
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka import consumer_group as fake_consumer_group
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.consumer.members import read, remove_member
from tests.protocol.fetch.consuming import client_of
from tests.support.internals import membership_of
from tests.support.small_cluster import END, SmallCluster
from tests.support.wait_until import wait_until

BOTH = frozenset({("orders", 0), ("orders", 1)})
PROTOCOLS = pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE, KIP_848], ids=["eager", "cooperative", "kip848"])


class RaisingListener(ConsumerRebalanceListener):
    """Raises in the method `name`, at each call."""

    def __init__(self, name: str) -> None:
        self.calls: list[str] = []
        self._name = name

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self._name:
            raise ZeroDivisionError(name)

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note("assigned")

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note("revoked")

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._note("lost")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    monkeypatch.setattr(fake_consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    with SmallCluster() as fake:
        yield fake


@pytest.fixture
def client(fake: SmallCluster) -> Iterator[Client]:
    with client_of(fake.bootstrap_servers) as client:
        yield client


def consumer_of(client: Client, protocol: dict[str, object], **properties: object) -> KafkaConsumer:
    given = {"group.id": "etl", "auto.offset.reset": "earliest", "enable.auto.commit": False, **protocol}
    return KafkaConsumer(client, parse_group_consumer({**given, **properties}))


class CallingListener(ConsumerRebalanceListener):
    """Calls a function when partitions are revoked or lost, once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.function: Callable[[], object] | None = None

    def _call(self, name: str) -> None:
        self.calls.append(name)
        function, self.function = self.function, None
        if function is not None:
            function()

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._call("revoked")

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._call("lost")


def polled(consumer: KafkaConsumer, until: int) -> tuple[int, list[Exception]]:
    """Poll until there are `until` rows; return the rows and the exceptions."""
    rows, raised = 0, list[Exception]()
    until_s = time.monotonic() + 25
    while rows < until:
        assert time.monotonic() < until_s, (rows, raised)
        try:
            rows += consumer.poll(50).num_rows
        except (ZeroDivisionError, CommitFailed) as error:
            raised.append(error)
    return rows, raised


@PROTOCOLS
@pytest.mark.parametrize("commits", [False, True], ids=["raises", "commits"])
def test_listener_raising_on_lost_partitions_does_not_prevent_rejoin(
    client: Client, protocol: dict[str, object], commits: bool
) -> None:
    """By default `on_partitions_lost` calls `on_partitions_revoked`, where most listeners commit."""

    class Committing(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            consumer.commit_sync()

    listener: ConsumerRebalanceListener = Committing() if commits else RaisingListener("lost")
    with consumer_of(client, protocol) as consumer:
        consumer.subscribe(["orders"], listener)
        read(consumer, 2 * END)
        remove_member(client, "etl", consumer.group_metadata().member)
        rows, raised = polled(consumer, 2 * END)
        assert (rows, len(raised)) == (2 * END, 1), raised
        assert isinstance(raised[0], CommitFailed if commits else ZeroDivisionError)
        assert consumer.assignment == BOTH
        consumer.unsubscribe()


@PROTOCOLS
def test_listener_raising_on_revocation_does_not_keep_partitions(
    fake: SmallCluster, client: Client, protocol: dict[str, object]
) -> None:
    listener = RaisingListener("revoked")
    with consumer_of(client, protocol, **{"enable.auto.commit": True}) as consumer:
        consumer.subscribe(["orders"], listener)
        read(consumer, 2 * END)
        with client_of(fake.bootstrap_servers) as another, consumer_of(another, protocol) as second:
            second.subscribe(["orders"])
            raised: list[Exception] = []

            def shared() -> bool:
                second.poll(20)
                try:
                    consumer.poll(20)
                except ZeroDivisionError as error:
                    raised.append(error)
                return len(consumer.assignment) == len(second.assignment) == 1

            wait_until(shared)
            assert [str(error) for error in raised] == ["revoked"]
            offsets = fetch_offsets(client, "etl", BOTH, client.deadline())
            assert {offset.offset for offset in offsets.values()} == {END}
            with pytest.raises(ZeroDivisionError):
                consumer.unsubscribe()
            wait_until(lambda: second.poll(20) or second.assignment == BOTH)


@PROTOCOLS
def test_listener_raising_on_assignment_does_not_prevent_reads(client: Client, protocol: dict[str, object]) -> None:
    listener = RaisingListener("assigned")
    with consumer_of(client, protocol) as consumer:
        consumer.subscribe(["orders"], listener)
        assert [str(error) for error in polled(consumer, 2 * END)[1]] == ["assigned"]
        assert listener.calls == ["assigned"]


@pytest.mark.parametrize("end", ["close", "unsubscribe", "enforce_rebalance"])
def test_listener_raising_on_revocation_does_not_prevent_leaving(fake: SmallCluster, client: Client, end: str) -> None:
    consumer = consumer_of(client, EAGER)
    consumer.subscribe(["orders"], RaisingListener("revoked"))
    read(consumer, 2 * END)
    with pytest.raises(ZeroDivisionError, match="revoked"):
        getattr(consumer, end)()
    assert not fake.groups.groups["etl"].members
    consumer.close()


@PROTOCOLS
@pytest.mark.parametrize("event", ["revoked", "lost"])
def test_partitions_that_the_listener_assigns_after_leaving_are_read(
    fake: SmallCluster, client: Client, protocol: dict[str, object], event: str
) -> None:
    def leave_and_assign() -> None:
        consumer.unsubscribe()
        consumer.assign(BOTH)

    listener = CallingListener()
    with (
        consumer_of(client, protocol) as consumer,
        client_of(fake.bootstrap_servers) as another,
        consumer_of(another, protocol) as second,
    ):
        consumer.subscribe(["orders"], listener)
        read(consumer, 2 * END)
        listener.function = leave_and_assign
        if event == "lost":
            remove_member(client, "etl", consumer.group_metadata().member)
        else:
            second.subscribe(["orders"])
        rows: list[int] = []

        def has_left() -> bool:
            if event == "revoked":
                second.poll(20)
            rows.append(consumer.poll(20).num_rows)
            return listener.function is None

        wait_until(has_left)
        assert listener.calls[0] == event
        assert sum(rows) + len(read(consumer, 2 * END - sum(rows))) == 2 * END
        assert consumer.assignment == BOTH


@PROTOCOLS
@pytest.mark.parametrize("call", ["unsubscribe", "enforce_rebalance"])
def test_listener_that_leaves_the_group_again_is_refused(
    fake: SmallCluster, client: Client, protocol: dict[str, object], call: str
) -> None:
    listener = CallingListener()
    with consumer_of(client, protocol) as consumer:
        consumer.subscribe(["orders"], listener)
        read(consumer, 2 * END)
        listener.function = getattr(consumer, call)
        with pytest.raises(UsageError, match="must not call this while the consumer leaves"):
            getattr(consumer, call)()
        assert listener.calls == ["revoked"]
        group = fake.groups.groups.get("etl")
        assert group is None or not group.members
        consumer.subscribe(["orders"])
        assert len(read(consumer, 2 * END)) == 2 * END


@PROTOCOLS
def test_listener_that_polls_is_refused_and_reading_continues(client: Client, protocol: dict[str, object]) -> None:
    listener = CallingListener()
    with consumer_of(client, protocol) as consumer:
        consumer.subscribe(["orders"], listener)
        read(consumer, 2 * END)
        remove_member(client, "etl", consumer.group_metadata().member)
        listener.function = lambda: consumer.poll(2_000)
        with pytest.raises(UsageError, match="must not call poll"):
            wait_until(lambda: consumer.poll(20) or False)
        assert len(read(consumer, 2 * END)) == 2 * END
        assert consumer.assignment == BOTH


@PROTOCOLS
@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_leaving_after_a_removal_calls_on_partitions_lost(
    client: Client, protocol: dict[str, object], end: str
) -> None:
    listener = CallingListener()
    consumer = consumer_of(client, protocol)
    consumer.subscribe(["orders"], listener)
    read(consumer, 2 * END)
    remove_member(client, "etl", consumer.group_metadata().member)
    wait_until(lambda: membership_of(consumer).assignment_lost)
    getattr(consumer, end)()
    assert listener.calls == ["lost"]
    consumer.close()
