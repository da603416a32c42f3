"""Commits of a polling consumer after a seek, an interrupt or close."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from protocol import Client, ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from protocol.consumer.assigned_partitions import AssignedPartitions
from protocol.consumer.commits import Offsets
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.errors import CommitFailed, Corrupt, DataLoss, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.testing import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.conftest import EAGER, NewConsumer
from tests.protocol.consumer.members import consumer_of, read, remove_member, subscribed
from tests.protocol.transaction.producing import started
from tests.support.internals import commits_of, membership_of
from tests.support.member_queries import fill
from tests.support.small_cluster import END, SmallCluster
from tests.support.wait_until import wait_until

COUNT, FIRST, SECOND = 20, ("orders", 0), ("orders", 1)


@pytest.fixture
def key(kafka1: LocalKafka, topic1: TopicFactory) -> TopicPartition:
    """Return a partition with 20 records."""
    name = topic1(1)
    fill(kafka1, name, 1, COUNT)
    return name, 0


def test_commit_to_a_group_with_members_is_refused_without_retry(fake_client: Client) -> None:
    """After the members have left, the commit would reset their offsets."""
    with consumer_of(fake_client) as ours:
        with consumer_of(fake_client) as consumer:
            consumer.subscribe(["orders"])
            wait_until(lambda: consumer.poll(100) or consumer.assignment)
            consumer.commit_sync({FIRST: CommittedOffset(9)})
            with pytest.raises(CommitFailed, match="the group has live members"):
                ours.commit_sync({FIRST: CommittedOffset(5)}, timeout_ms=20_000)
        ours.commit_sync({SECOND: CommittedOffset(1)})
        assert ours.committed([FIRST]) == {FIRST: CommittedOffset(9)}


def all_calls(consumer: KafkaConsumer, key: TopicPartition) -> dict[str, Callable[[], object]]:
    """Return all public methods and properties, except `close` and the thread-safe ones, with valid arguments."""
    options: dict[str, tuple[object, ...]] = {
        **dict.fromkeys(("position", "current_lag"), (key,)),
        **dict.fromkeys(("assign", "pause", "resume", "committed", "beginning_offsets", "end_offsets"), ([key],)),
        "subscribe": (["no such topic"],),
        "poll": (0,),
        "seek": (key, 0),
        "offsets_for_times": ({key: 0},),
    }

    def call(name: str) -> object:
        result = getattr(consumer, name)
        return result(*options.get(name, ())) if callable(result) else result

    left_out = {"wakeup", "client", "config", "metrics", "close"}
    names = [name for name in dir(KafkaConsumer) if not name.startswith("_") and name not in left_out]
    return {name: partial(call, name) for name in names}


def test_calls_of_another_thread_are_refused_during_a_poll(
    key: TopicPartition, new_consumer: NewConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would commit records that the poll has not returned, or close partitions that it starts to read."""
    ours, poll, errors = new_consumer(), AssignedPartitions.poll, dict[str, str]()

    def seen_by_another_thread(*arguments: Any) -> Any:
        read = poll(*arguments)
        for name, call in {**all_calls(ours, key), "close": ours.close}.items():
            with ThreadPoolExecutor() as threads:
                errors[name] = str(threads.submit(call).exception())
        return read

    ours.assign([key])
    monkeypatch.setattr(AssignedPartitions, "poll", seen_by_another_thread)
    ours.poll(0)
    assert len(errors) >= 20
    assert set(errors.values()) == {"another thread uses this consumer, which is not thread-safe except wakeup"}, errors


def test_seek_back_to_the_start_offset_is_committed_by_close(fake: SmallCluster, fake_client: Client) -> None:
    start = dict.fromkeys((FIRST, SECOND), CommittedOffset(1))
    with consumer_of(fake_client, EAGER) as earlier:
        earlier.commit_sync(start)
    ours = consumer_of(fake_client, EAGER, **{"enable.auto.commit": True})
    ours.subscribe(["orders"])
    read(ours, 2 * (END - 1))
    ours.commit_sync()
    assert ours.committed(start) == dict.fromkeys(start, CommittedOffset(END))
    for key in start:
        ours.seek(key, 1)
    ours.close()
    assert fetch_offsets(fake_client, "etl", None, fake_client.deadline()) == start


def test_calls_after_close_are_refused(key: TopicPartition, new_consumer: NewConsumer) -> None:
    ours = new_consumer()
    ours.assign([key])
    ours.close()
    ours.close()
    for call in all_calls(ours, key).values():
        with pytest.raises(UsageError, match="this consumer is closed"):
            call()


@pytest.mark.parametrize("waits", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("end", ["close", "unsubscribe", "rebalance"])
def test_listener_commits_before_revocation(fake: SmallCluster, fake_client: Client, end: str, waits: bool) -> None:
    offset, callback_errors = CommittedOffset(7), []

    class Commits(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            offsets = dict.fromkeys(partitions, offset)
            if waits:
                ours.commit_sync(offsets)
            else:
                ours.commit_async(offsets, lambda offsets, error: callback_errors.append(error))
            if end == "close":
                ours.close()  # again, without effect

    ours = subscribed(fake_client, EAGER, Commits())
    both = ours.assignment
    if end == "rebalance":
        fake.delay_replies("OffsetCommit", 0.1)
        fake.rebalance("etl")
        wait_until(lambda: ours.poll(50) is not None and len(fake.request_bodies("JoinGroup")) > 2)
    else:
        getattr(ours, end)()
    assert callback_errors == ([] if waits else [None])
    assert fetch_offsets(fake_client, "etl", both, fake_client.deadline()) == dict.fromkeys(both, offset)
    ours.close()


@pytest.mark.parametrize("end", ["poll", "close"])
def test_callbacks_after_a_raising_one_are_called(
    fake_client: Client, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    called_with: list[int] = []

    def fail_at_first(offsets: Offsets, error: CommitFailed | None) -> None:
        called_with.append(offsets[FIRST].offset)
        if called_with[-1] < 3:
            raise ZeroDivisionError(f"in callback {called_with[-1]}")

    ours = consumer_of(fake_client)
    ours.assign([FIRST])
    for offset in (1, 2, 3):
        ours.commit_async({FIRST: CommittedOffset(offset)}, fail_at_first)
    manager = commits_of(ours).manager
    assert manager is not None
    assert manager.flush(fake_client.deadline())
    with pytest.raises(ZeroDivisionError, match="in callback 1"):
        ours.close() if end == "close" else ours.poll(0)
    assert called_with == [1, 2, 3]
    assert "in callback 2" in caplog.text
    ours.close()


def with_corrupt_end(body: dict[str, Any]) -> dict[str, Any]:
    """Return a Fetch reply with a corrupt last batch of partition 0."""
    for row in (row for topic in body.get("responses", []) for row in topic["partitions"]):
        if row["partition_index"] == 0 and row["records"]:
            *before, last = bytes(row["records"])
            row["records"] = bytes([*before, last ^ 1])
    return body


@pytest.mark.parametrize("fault", ["a corrupt batch", "deleted records"])
def test_lasting_error_of_a_partition_is_raised_again_beside_a_healthy_one(fake: SmallCluster, fault: str) -> None:
    if fault == "a corrupt batch":
        fake.edit_replies("Fetch", with_corrupt_end)
    properties = {"bootstrap.servers": fake.bootstrap_servers, "auto.offset.reset": "none", "fetch.max.wait.ms": 50}
    with KafkaConsumer(properties) as ours:
        ours.assign([FIRST, SECOND])
        ours.seek(FIRST, 10_000 if fault == "deleted records" else 0)
        ours.seek(SECOND, 0)
        rows, frames = 0, list[int]()
        while rows < END or len(frames) < 5:
            try:
                rows += sum(batch.num_rows for batch in ours.poll(20).get(SECOND, []))
            except (Corrupt, DataLoss) as error:
                frames.append(len(traceback.extract_tb(error.__traceback__)))
        assert len(set(frames[-3:])) == 1, "frames of earlier polls are kept"
        ours.seek(FIRST, END)
        assert not ours.poll(50)


@pytest.mark.parametrize("change", ["seek", "assign"])
def test_error_is_not_raised_after_its_partition_was_sought_or_dropped(change: str) -> None:
    """The poll that has met the error has returned the records before it."""
    with FakeKafka() as fake:
        fake.create_topic("orders", 2)
        for value in "ab":
            fake.produce("orders", value, partition=0)
        fake.edit_replies("Fetch", with_corrupt_end)
        servers = {"bootstrap.servers": fake.bootstrap_servers}
        with KafkaConsumer({**servers, "auto.offset.reset": "earliest", "fetch.max.wait.ms": 50}) as ours:
            ours.assign([FIRST])
            read(ours, 1)
            if change == "seek":
                ours.seek(FIRST, 2)
            else:
                ours.assign([SECOND])
            assert not ours.poll(100)


def test_callbacks_are_called_in_the_order_of_the_commits(fake: SmallCluster, fake_client: Client) -> None:
    """Also after a commit that fails alone at first, and of a commit that is refused at once."""
    called_with: list[tuple[int, bool]] = []

    def note(offsets: Offsets, error: CommitFailed | None) -> None:
        called_with.extend((to.offset, error is None) for to in offsets.values())

    with subscribed(fake_client, EAGER) as ours:
        fake.refuse("OffsetCommit", "UNKNOWN_TOPIC_OR_PARTITION", 2, partition=FIRST)
        ours.commit_async({FIRST: CommittedOffset(1)}, note)
        ours.commit_async({SECOND: CommittedOffset(2)}, note)
        wait_until(lambda: ours.poll(20) or len(called_with) == 2)
        fake.refuse("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", 1_000)
        ours.commit_async({FIRST: CommittedOffset(3)}, note)
        remove_member(fake_client, "etl", ours.group_metadata().member)
        wait_until(lambda: membership_of(ours).assignment_lost)
        ours.commit_async({SECOND: CommittedOffset(4)}, note)
        assert len(called_with) == 2, "callbacks are called by later calls"
        wait_until(lambda: ours.poll(20) or len(called_with) == 4)
    assert called_with == [(1, True), (2, True), (3, False), (4, False)]


def test_offsets_behind_polled_records_have_epoch_and_topic_id_as_the_consumers_own_commit(
    fake: SmallCluster, fake_client: Client
) -> None:
    fake.set_leader_epoch(*FIRST, 3)
    producer = started(fake_client, "etl")
    producer.begin_transaction()
    producer.send("orders", "a", partition=0)
    producer.commit_transaction()
    with consumer_of(fake_client, **{"isolation.level": "read_committed"}) as ours:
        ours.assign([FIRST])
        ours.seek(FIRST, END)
        records = ours.poll(20_000)
        offsets = records.next_offsets
        ours.commit_sync()
        assert offsets == ours.committed([FIRST])
        assert (offsets[FIRST].offset, offsets[FIRST].leader_epoch) == (END + 2, 3), "behind the marker"
        fake.produce("orders", "c", partition=0)
        ours.poll(20_000)
        assert records.next_offsets == offsets, "the offsets of the same poll"


def test_offsets_behind_polled_records_follow_from_batches_alone() -> None:
    batch = pa.record_batch({"offset": pa.array([7, 9], pa.int64())})
    assert ConsumerRecords({FIRST: [batch]}).next_offsets == {FIRST: CommittedOffset(10)}
