"""Commits that are repeated, that fail for one partition, or that the coordinator does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import protocol
from protocol import Admin, Client, Consumer, KafkaConsumer, TopicPartition, TransactionalProducer
from protocol.broker_errors import ErrorCode
from protocol.consumer.commits import Offsets
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, ConnectFailed, UsageError
from protocol.group.commits import offset_manager
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.testing import MockConsumer
from protocol.testing.fake_kafka.faults import ALWAYS
from tests.protocol.consumer.conftest import PROTOCOLS
from tests.protocol.consumer.members import IdleHandler, consumer_of, group_of, read
from tests.protocol.fetch.consuming import client_of, records
from tests.support.internals import commits_of
from tests.support.small_cluster import END, SmallCluster
from tests.support.wait_until import wait_until

GROUP, FIRST, SECOND = "etl", ("orders", 0), ("orders", 1)
OF_FIRST, OF_SECOND = {FIRST: CommittedOffset(5)}, {SECOND: CommittedOffset(5)}
AUTOMATIC = {"enable.auto.commit": True, "auto.commit.interval.ms": 50}


@pytest.fixture
def client(fake: SmallCluster) -> Iterator[Client]:
    with client_of(fake.bootstrap_servers, metadata_max_age_ms=500) as client:
        yield client


@pytest.fixture
def consumer(client: Client) -> Iterator[KafkaConsumer]:
    with consumer_of(client) as consumer:
        yield consumer


def committed(client: Client, key: TopicPartition = FIRST) -> int | None:
    offsets = fetch_offsets(client, GROUP, [key], client.deadline())
    return offsets[key].offset if key in offsets else None


# -- offsets that Kafka cannot store ----------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 2**63, 5.0, True, None], ids=str)
def test_offset_that_kafka_cannot_store_is_refused_by_every_call(
    fake: SmallCluster, client: Client, consumer: KafkaConsumer, offset: Any
) -> None:
    consumer.assign([FIRST, SECOND])
    with Consumer(client) as reader, TransactionalProducer(client, {"transactional.id": "etl"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        mock, stream = MockConsumer(), reader.consume_partition(*FIRST, 0)
        mock.assign([FIRST])
        calls: list[Callable[[Any], object]] = [
            lambda to: consumer.commit_sync({FIRST: to}),
            lambda to: consumer.commit_async({FIRST: to}),
            lambda to: consumer.seek(FIRST, to),
            lambda to: Admin(client).alter_consumer_group_offsets(GROUP, {FIRST: to}),
            lambda to: producer.send_offsets_to_transaction({FIRST: to}, consumer.group_metadata()),
            stream.seek,
            lambda to: reader.consume_partition("orders", 1, to if to != -1 else -3),
            lambda to: protocol.read({"bootstrap.servers": fake.bootstrap_servers}, "orders", {FIRST: to}),
            lambda to: mock.commit_sync({FIRST: to}),
            lambda to: mock.seek(FIRST, to),
        ]
        for call in calls:
            with pytest.raises(UsageError, match=r"orders-[01]: offset is"):
                call(offset)
            call(np.int64(5))
        producer.commit_transaction()
        consumer.commit_sync({SECOND: 7})
        assert fake.committed_offsets(GROUP) == {FIRST: 5, SECOND: 7}


def test_callback_that_is_not_callable_is_refused_before_the_commit(
    fake: SmallCluster, consumer: KafkaConsumer
) -> None:
    consumer.assign([FIRST])
    mock = MockConsumer()
    mock.assign([FIRST])
    for either in (consumer, mock):
        with pytest.raises(UsageError, match="callback is 5; it must be callable"):
            either.commit_async({FIRST: 1}, 5)  # type: ignore[arg-type]
        assert either.committed([FIRST]) == {FIRST: None}


def test_mark_that_kafka_cannot_store_is_refused_and_other_marks_are_committed(
    fake: SmallCluster, client: Client
) -> None:
    class Handler(IdleHandler):
        def setup(self, session: ConsumerGroupSession) -> None:
            session.reset_offset(*SECOND, 5)
            for values in ((-1,), (2**63,), (1.0,), (1, "caf\udce9"), (1, b"m")):
                with pytest.raises(UsageError, match="orders-0"):
                    session.reset_offset(*FIRST, *values)
            session.commit()

        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            if claim.partition == 0:
                with pytest.raises(UsageError, match="orders-0"):
                    claim.seek(2**63)
                assert claim.initial_offset == 0
                with pytest.raises(UsageError, match="orders-0"):
                    session.mark_offset(*FIRST, 3, "caf\udce9")
                session.mark_offset(*FIRST, 3, "so far")
                session.end(session.end_reason)  # type: ignore[arg-type]
            session.ended.wait(10)

    with group_of(client) as group:
        group.consume(["orders"], Handler())
    assert fake.committed_offsets(GROUP) == {FIRST: 3, SECOND: 5}
    assert fake.offsets.committed[GROUP][FIRST].metadata == "so far"


# -- the same offset again ------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["refused", "replaced by another program"])
def test_commit_of_the_same_offset_is_sent_again(
    fake: SmallCluster, client: Client, consumer: KafkaConsumer, first: str
) -> None:
    if first == "refused":
        fake.refuse("OffsetCommit", ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(CommitFailed, match="GROUP_AUTHORIZATION_FAILED"):
            consumer.commit_sync(OF_FIRST)
    else:
        consumer.commit_sync(OF_FIRST)
        commit_offsets(client, GROUP, {FIRST: CommittedOffset(9)}, client.deadline())
    consumer.commit_sync(OF_FIRST)
    assert committed(client) == 5


# -- automatic commits ----------------------------------------------------------------------------


def test_partition_that_is_no_longer_assigned_is_committed_if_a_commit_is_due(client: Client) -> None:
    """As in Java: no revocation follows that would commit it."""
    with consumer_of(client, **{**AUTOMATIC, "auto.commit.interval.ms": 1}) as consumer:
        consumer.assign([FIRST])
        assert sum(batch.num_rows for batches in consumer.poll(20_000).values() for batch in batches) == END
        consumer.assign([SECOND])
        wait_until(lambda: committed(client) == END)


def test_idle_partition_of_an_assigned_consumer_is_committed_again(fake: SmallCluster, client: Client) -> None:
    """Brokers expire the offsets of a group without members, some time after the last commit of each."""
    commit_offsets(client, GROUP, {FIRST: CommittedOffset(END)}, client.deadline())
    with consumer_of(client, **AUTOMATIC) as consumer:
        consumer.assign([FIRST])
        assert consumer.position(FIRST) == END
        with fake.changed:
            del fake.offsets.committed[GROUP][FIRST]
        wait_until(lambda: consumer.poll(10) or committed(client) == END)


def test_refused_automatic_commit_is_repeated(fake: SmallCluster, client: Client) -> None:
    with consumer_of(client, **AUTOMATIC) as consumer:
        consumer.subscribe(["orders"])
        fake.refuse("OffsetCommit", ErrorCode.OFFSET_METADATA_TOO_LARGE, 2)
        read(consumer, 2 * END)
        wait_until(lambda: consumer.poll(20) or len(fake.request_bodies("OffsetCommit")) >= 3)
    assert fake.committed_offsets(GROUP) == {FIRST: END, SECOND: END}


@pytest.mark.parametrize("end", ["commit_sync", "close"])
def test_sought_position_is_committed_before_the_partition_has_started(
    fake: SmallCluster, client: Client, end: str
) -> None:
    with consumer_of(client, **{"enable.auto.commit": end == "close"}) as consumer:
        consumer.assign([FIRST, SECOND])
        consumer.seek_to_end([FIRST])
        assert consumer.positions() == {FIRST: CommittedOffset(END)}
        getattr(consumer, end)()
        assert fake.committed_offsets(GROUP) == {FIRST: END}


# -- one partition fails --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "times"), [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ALWAYS), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)]
)
def test_commit_failing_for_one_partition_names_it_and_commits_others(
    fake: SmallCluster,
    client: Client,
    consumer: KafkaConsumer,
    code: ErrorCode,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_manager, "TRANSIENT_UNKNOWN_MS", 300)
    fake.refuse("OffsetCommit", code, times, partition=SECOND)
    with pytest.raises(CommitFailed, match=f"orders-1 .*{code.name}"):
        consumer.commit_sync({**OF_FIRST, **OF_SECOND})
    assert committed(client) == 5
    fake.faults.clear()
    consumer.commit_sync(OF_SECOND)
    assert committed(client, SECOND) == 5


@PROTOCOLS
def test_polling_continues_when_a_subscribed_topic_is_deleted(
    fake: SmallCluster, client: Client, protocol: dict[str, object]
) -> None:
    """Offsets of the deleted topic cannot be committed before its partitions are revoked."""
    with consumer_of(client, protocol, **{"enable.auto.commit": True}) as consumer:
        consumer.subscribe(["orders", "returns"])
        read(consumer, 4 * END)
        since_s = time.monotonic()
        fake.delete_topic("returns")
        wait_until(lambda: consumer.poll(50) or {topic for topic, _ in consumer.assignment} == {"orders"})
        fake.write("orders", 0, records_at(fake, FIRST))
        read(consumer, 1)
        assert time.monotonic() - since_s < 25
    assert (committed(client), committed(client, SECOND)) == (END + 1, END)


def test_claim_whose_thread_cannot_start_ends_the_session_with_an_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse_claims(thread: threading.Thread) -> None:
        if thread.name.startswith("claim"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_claims)
    with group_of(client) as members:
        kept = commits_of(members).uncommitted_at_revocation
        kept[FIRST] = CommittedOffset(2)
        with pytest.raises(ConnectFailed, match="claim orders-0: no thread could be started"):
            members.consume(["orders"], IdleHandler())
        assert kept == {FIRST: CommittedOffset(2)}


# -- the coordinator does not answer --------------------------------------------------------------


def test_callback_gets_an_error_when_the_coordinator_refuses_commits(
    fake: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_manager, "COMMIT_TIMEOUT_MS", 200)
    fake.refuse("OffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ALWAYS)
    errors: list[tuple[int, str]] = []

    def on_commit(offsets: Offsets, error: CommitFailed | None) -> None:
        errors.append((offsets[FIRST].offset, str(error)))

    with client_of(fake.bootstrap_servers, request_timeout_ms=2_500) as client, consumer_of(client) as consumer:
        for offset in range(3):
            consumer.commit_async({FIRST: CommittedOffset(offset)}, on_commit)
        consumer.poll(0)
        assert not errors
        wait_until(lambda: consumer.poll(20) or len(errors) == 3)
        assert [offset for offset, _ in errors] == [0, 1, 2]
        assert all("COORDINATOR_LOAD_IN_PROGRESS" in words for _, words in errors)
        assert not commits_of(consumer).pending
        fake.faults.clear()
        wait_until(lambda: committed(client) == 2)


def test_refused_commit_without_callback_is_logged(consumer: KafkaConsumer, caplog: pytest.LogCaptureFixture) -> None:
    consumer.subscribe(["orders"])
    wait_until(lambda: consumer.poll(20) or consumer.assignment)
    consumer.unsubscribe()
    consumer.commit_async(OF_FIRST)
    assert "group etl: offsets were not committed: the assignment under which they were read has ended" in caplog.text


def records_at(fake: SmallCluster, key: TopicPartition) -> bytes:
    return records(fake.log(*key).end_offset, 1)
