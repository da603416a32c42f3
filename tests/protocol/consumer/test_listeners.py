"""Rebalance listeners that raise or call the consumer: the member continues, and an exception is raised once."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from protocol import Client, ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from protocol.errors import CommitFailed, UsageError
from protocol.group.commits.committed_offsets import fetch_offsets
from tests.protocol.consumer.conftest import EAGER, PROTOCOLS
from tests.protocol.consumer.members import Listener, consumer_of, read, remove_member, subscribed
from tests.protocol.fetch.consuming import client_of
from tests.support.internals import membership_of
from tests.support.small_cluster import END, SmallCluster
from tests.support.wait_until import wait_until

BOTH = frozenset({("orders", 0), ("orders", 1)})


class Committing(ConsumerRebalanceListener):
    """By default `on_partitions_lost` calls `on_partitions_revoked`, where most listeners commit."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.commit_sync()


def remove(fake_client: Client, consumer: KafkaConsumer) -> None:
    remove_member(fake_client, "etl", consumer.group_metadata().member)


def errors_until_read(consumer: KafkaConsumer) -> list[Exception]:
    """Poll until all records were read, once; return the exceptions."""
    rows, raised = [0], list[Exception]()

    def poll() -> bool:
        try:
            rows.append(consumer.poll(50).num_rows)
        except (ZeroDivisionError, CommitFailed) as error:
            raised.append(error)
        return sum(rows) >= 2 * END

    wait_until(poll, lambda: (rows, raised))
    assert sum(rows) == 2 * END
    return raised


@PROTOCOLS
@pytest.mark.parametrize("commits", [False, True], ids=["raises", "commits"])
def test_listener_raising_on_lost_partitions_does_not_prevent_rejoin(
    fake_client: Client, protocol: dict[str, object], commits: bool
) -> None:
    with consumer_of(fake_client, protocol) as consumer:
        consumer.subscribe(["orders"], Committing(consumer) if commits else Listener("lost"))
        read(consumer, 2 * END)
        remove(fake_client, consumer)
        [raised] = errors_until_read(consumer)
        assert isinstance(raised, CommitFailed if commits else ZeroDivisionError)
        assert consumer.assignment == BOTH
        consumer.unsubscribe()


@PROTOCOLS
def test_listener_raising_on_revocation_does_not_keep_partitions(
    fake: SmallCluster, fake_client: Client, protocol: dict[str, object]
) -> None:
    with (
        subscribed(fake_client, protocol, Listener("revoked"), **{"enable.auto.commit": True}) as consumer,
        client_of(fake.bootstrap_servers) as another,
        consumer_of(another, protocol) as second,
    ):
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
        offsets = fetch_offsets(fake_client, "etl", BOTH, fake_client.deadline())
        assert {offset.offset for offset in offsets.values()} == {END}
        with pytest.raises(ZeroDivisionError):
            consumer.unsubscribe()
        wait_until(lambda: second.poll(20) or second.assignment == BOTH)


@PROTOCOLS
def test_listener_raising_on_assignment_does_not_prevent_reads(
    fake_client: Client, protocol: dict[str, object]
) -> None:
    listener = Listener("assigned")
    with consumer_of(fake_client, protocol) as consumer:
        consumer.subscribe(["orders"], listener)
        assert [str(error) for error in errors_until_read(consumer)] == ["assigned"]
        assert listener.calls == ["assigned"]


@pytest.mark.parametrize("end", ["close", "unsubscribe", "enforce_rebalance"])
def test_listener_raising_on_revocation_does_not_prevent_leaving(
    fake: SmallCluster, fake_client: Client, end: str
) -> None:
    consumer = subscribed(fake_client, EAGER, Listener("revoked"))
    with pytest.raises(ZeroDivisionError, match="revoked"):
        getattr(consumer, end)()
    assert not fake.groups.groups["etl"].members
    consumer.close()


@PROTOCOLS
@pytest.mark.parametrize("event", ["revoked", "lost"])
def test_partitions_that_the_listener_assigns_after_leaving_are_read(
    fake: SmallCluster, fake_client: Client, protocol: dict[str, object], event: str
) -> None:
    def leave_and_assign() -> None:
        has_left.append(True)
        consumer.unsubscribe()
        consumer.assign(BOTH)

    listener, has_left, rows = Listener(), list[bool](), list[int]()
    with (
        subscribed(fake_client, protocol, listener) as consumer,
        client_of(fake.bootstrap_servers) as another,
        consumer_of(another, protocol) as second,
    ):
        listener.function = leave_and_assign
        if event == "lost":
            remove(fake_client, consumer)
        else:
            second.subscribe(["orders"])

        def leaves() -> bool:
            if event == "revoked":
                second.poll(20)
            rows.append(consumer.poll(20).num_rows)
            return bool(has_left)

        wait_until(leaves)
        assert listener.calls[:2] == ["assigned", event]
        assert sum(rows) + len(read(consumer, 2 * END - sum(rows))) == 2 * END
        assert consumer.assignment == BOTH


@PROTOCOLS
@pytest.mark.parametrize("call", ["unsubscribe", "enforce_rebalance"])
def test_listener_that_leaves_the_group_again_is_refused(
    fake: SmallCluster, fake_client: Client, protocol: dict[str, object], call: str
) -> None:
    listener = Listener()
    with subscribed(fake_client, protocol, listener) as consumer:
        listener.function = getattr(consumer, call)
        with pytest.raises(UsageError, match="must not call this while the consumer leaves"):
            getattr(consumer, call)()
        assert listener.calls == ["assigned", "revoked"]
        group = fake.groups.groups.get("etl")
        assert group is None or not group.members
        consumer.subscribe(["orders"])
        assert len(read(consumer, 2 * END)) == 2 * END


@PROTOCOLS
def test_listener_that_polls_is_refused_and_reading_continues(fake_client: Client, protocol: dict[str, object]) -> None:
    listener = Listener()
    with subscribed(fake_client, protocol, listener) as consumer:
        remove(fake_client, consumer)
        listener.function = lambda: consumer.poll(2_000)
        with pytest.raises(UsageError, match="must not call poll"):
            wait_until(lambda: consumer.poll(20) or False)
        assert len(read(consumer, 2 * END)) == 2 * END
        assert consumer.assignment == BOTH


@PROTOCOLS
@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_leaving_after_a_removal_calls_on_partitions_lost(
    fake_client: Client, protocol: dict[str, object], end: str
) -> None:
    listener = Listener()
    consumer = subscribed(fake_client, protocol, listener)
    remove(fake_client, consumer)
    wait_until(lambda: membership_of(consumer).assignment_lost)
    getattr(consumer, end)()
    assert listener.calls == ["assigned", "lost"]
    consumer.close()
