"""Beginning of partitions: one without a leader, or with a lost position, stops no other."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from protocol import Client, CommittedOffset, KafkaConsumer, TopicPartition
from protocol.broker_errors import ErrorCode
from protocol.consumer.start_offsets import StartLookup
from protocol.errors import ConnectFailed, DataLoss, DeadlineExceeded, KafkaError, NoOffset, WakeUp
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.controller import NO_LEADER
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.offsets import Committed
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.schema import Api
from tests.protocol.consumer.conftest import EAGER
from tests.protocol.consumer.members import IdleHandler, ReadingHandler, consumer_of, group_of
from tests.protocol.fetch.consuming import client_of, records
from tests.support.background import background
from tests.support.internals import partitions_of
from tests.support.wait_until import wait_until

HEALTHY, OFFLINE = ("healthy", 0), ("offline", 0)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Five records in each of two topics, of which one has no leader."""
    with FakeKafka() as kafka:
        for topic in ("healthy", "offline"):
            kafka.create_topic(topic, 1)
            kafka.write(topic, 0, records(0, 5))
        kafka.move_leader(*OFFLINE, NO_LEADER)
        yield kafka


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with client_of(fake.bootstrap_servers, retry_backoff_ms=10, retry_backoff_max_ms=20) as client:
        yield client


class Read:
    """Polls, and notes the number of values by topic, the errors, and the longest time of a poll."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer
        self.rows: Counter[str] = Counter()
        self.errors: list[KafkaError] = []
        self.longest_s = 0.0

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: self.poll() or condition(), lambda: f"{self.rows}, {self.errors}")

    def poll(self) -> None:
        since_s = time.monotonic()
        try:
            for (topic, _), batches in self.consumer.poll(20).items():
                self.rows[topic] += sum(batch.num_rows for batch in batches)
        except KafkaError as error:
            self.errors.append(error)
        self.longest_s = max(self.longest_s, time.monotonic() - since_s)

    def until_rows(self, **counts: int) -> None:
        """Poll until each topic has its number of rows in `counts`."""
        self.until(lambda: all(self.rows[topic] == count for topic, count in counts.items()))


def reading(consumer: KafkaConsumer, *partitions: TopicPartition) -> Read:
    """Assign partitions, and return their reader."""
    consumer.assign(partitions)
    return Read(consumer)


@pytest.fixture(params=["assigned", "subscribed"])
def read(client: Client, request: pytest.FixtureRequest) -> Iterator[Read]:
    """Yield the reader of both partitions: assigned without a group, or of a member of a classic group."""
    if request.param == "assigned":
        with consumer_of(client, group=None) as consumer:
            yield reading(consumer, HEALTHY, OFFLINE)
    else:
        with consumer_of(client, EAGER) as consumer:
            consumer.subscribe(["healthy", "offline"])
            yield Read(consumer)


def test_partition_without_leader_begins_when_it_has_one(fake: FakeKafka, read: Read) -> None:
    read.until_rows(healthy=5)
    assert read.consumer.assignment == {HEALTHY, OFFLINE}
    fake.write("healthy", 0, records(5, 5))
    read.until_rows(healthy=10)
    fake.move_leader(*OFFLINE, 1)
    read.until_rows(offline=5)
    assert read.errors == []


def test_partition_without_leader_is_raised_repeatedly_and_healthy_one_is_read(fake: FakeKafka) -> None:
    with (
        client_of(fake.bootstrap_servers, default_api_timeout_ms=150, request_timeout_ms=150) as client,
        consumer_of(client, group=None) as consumer,
    ):
        read = reading(consumer, HEALTHY, OFFLINE)
        words = "offline-0: LEADER_NOT_AVAILABLE"  # on a loaded machine, other replies may be late, too
        read.until(lambda: str(read.errors).count(words) >= 2 and read.rows["healthy"] == 5)
        assert all(isinstance(error, DeadlineExceeded) for error in read.errors)
        with pytest.raises(DeadlineExceeded):
            consumer.position(OFFLINE)
        assert consumer.position(HEALTHY) == 5


@pytest.mark.parametrize("polled", [[OFFLINE], [HEALTHY, OFFLINE]], ids=["assigned later", "polled together"])
def test_position_of_a_committed_partition_is_returned_though_another_has_no_offset(
    client: Client, polled: list[TopicPartition]
) -> None:
    with consumer_of(client, **{"auto.offset.reset": "none"}) as consumer:
        consumer.commit_sync({HEALTHY: CommittedOffset(2)})
        consumer.assign(polled)
        with pytest.raises(NoOffset, match="offline-0: no start offset"):
            consumer.poll(10_000)
        consumer.assign([HEALTHY, OFFLINE])
        assert consumer.position(HEALTHY) == 2
        with pytest.raises(NoOffset, match="offline-0: no start offset"):
            consumer.position(OFFLINE)


@pytest.mark.parametrize("name", ["start offsets", "leaders", "member"])
def test_poll_retries_a_thread_that_cannot_start(client: Client, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The process has too many threads for a while."""
    start, refused = threading.Thread.start, list[str]()

    def refuse_twice(thread: threading.Thread) -> None:
        if name in thread.name and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_twice)
    with consumer_of(client) as consumer:
        consumer.subscribe(["healthy"])
        read = Read(consumer)
        read.until_rows(healthy=5)
    assert len(refused) == 2
    assert {type(error) for error in read.errors} == (set() if name == "start offsets" else {ConnectFailed})


@pytest.mark.parametrize("committed", [False, True], ids=["no commit", "a commit"])
def test_silent_leader_of_a_partition_without_offset_delays_no_other(committed: bool) -> None:
    with FakeKafka(brokers=2) as fake, client_of(fake.bootstrap_servers) as client:
        for topic, leader in (HEALTHY[0], 1), (OFFLINE[0], 2):
            fake.create_topic(topic, 1)
            fake.move_leader(topic, 0, leader)
            fake.produce(topic, *"12345")
        fake.move_coordinator("etl", 1)
        consumer = consumer_of(client)
        if committed:
            consumer.commit_sync({HEALTHY: CommittedOffset(0)})
        # So that no request goes to the silent broker first.
        client.snapshot([HEALTHY[0], OFFLINE[0]])
        consumer.committed([HEALTHY])
        fake.silence(2)
        read = reading(consumer, HEALTHY, OFFLINE)
        read.until_rows(healthy=5)
        for end in range(6, 30):
            fake.produce("healthy", "more")
            read.until_rows(healthy=end)
        assert read.longest_s < 1
        fake.silence(2, silent=False)
        read.until_rows(offline=5)
        assert read.errors == []
        consumer.close()


def test_silent_coordinator_delays_neither_polls_nor_wakeup_nor_close(fake: FakeKafka, client: Client) -> None:
    fake.move_coordinator("etl", 1)
    fake.delay_replies(OFFSET_FETCH, 20)
    with consumer_of(client) as consumer:
        read, since_s = reading(consumer, HEALTHY), time.monotonic()
        read.until(lambda: bool(fake.request_bodies(OFFSET_FETCH)))
        consumer.wakeup()
        with pytest.raises(WakeUp):
            consumer.poll(60_000)
        consumer.assign([HEALTHY, OFFLINE])
        consumer.seek(OFFLINE, 2)
        fake.move_leader(*OFFLINE, 1)
        read.until_rows(offline=3)
    assert read.longest_s < 5
    assert time.monotonic() - since_s < 15
    assert read.rows["healthy"] == 0


@pytest.mark.parametrize("change", ["a new assignment", "a seek"])
def test_offsets_that_arrive_after_a_change_are_ignored(fake: FakeKafka, client: Client, change: str) -> None:
    """Another member may have committed since they were requested."""
    changed = threading.Event()
    with consumer_of(client) as consumer:
        consumer.commit_sync({HEALTHY: CommittedOffset(1)})
        fake.edit_replies(OFFSET_FETCH, lambda body: body if changed.wait(20) else None, 1)
        read = reading(consumer, HEALTHY)
        read.until(lambda: bool(fake.request_bodies(OFFSET_FETCH)))
        if change == "a seek":
            consumer.seek(HEALTHY, 3)
        else:
            consumer.assign([])
            fake.offsets.committed["etl"][HEALTHY] = Committed(3, -1, "")
            fake.delay_replies(OFFSET_FETCH, 0.5)  # the first reply has arrived long before
            consumer.assign([HEALTHY])
        read.poll()
        changed.set()
        read.until_rows(healthy=2)
        assert consumer.position(HEALTHY) == 5


def test_claim_without_leader_begins_later_in_the_same_session(fake: FakeKafka, client: Client) -> None:
    group, handler = group_of(client), ReadingHandler()
    with background(lambda: group.consume(["healthy", "offline"], handler)), group:
        wait_until(lambda: handler.rows["healthy"] == 5)
        assert handler.sessions[0].claims == {"healthy": [0], "offline": [0]}
        fake.move_leader(*OFFLINE, 1)
        wait_until(lambda: handler.rows["offline"] == 5)
        assert len(handler.sessions) == 1


def test_lost_position_is_reset_when_leader_answers_and_holds_up_no_other(
    fake: FakeKafka, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    fake.move_leader(*OFFLINE, 1)
    read.until_rows(healthy=5, offline=5)
    requested: list[object] = []

    def refuse_after_validation(body: object) -> None:
        requested.append(body)
        if len(requested) == 3:
            fake.refuse(LIST_OFFSETS, ErrorCode.LEADER_NOT_AVAILABLE, ALWAYS, partition=OFFLINE)

    fake.before[LIST_OFFSETS] = refuse_after_validation
    fake.rewrite(*OFFLINE, records(100, 5), start=100)
    read.until(lambda: len(requested) > 3)
    fake.write("healthy", 0, records(5, 5))
    read.until_rows(healthy=10)
    assert read.rows["offline"] == 5
    fake.faults.clear()
    with caplog.at_level(logging.WARNING):
        read.until_rows(offline=10)
    assert [text.endswith(" at offset 100") for text in caplog.messages if "offline-0" in text] == [True]
    assert read.errors == []


def test_group_closes_while_the_coordinator_does_not_return_offsets(fake: FakeKafka, client: Client) -> None:
    fake.delay_replies(OFFSET_FETCH, 20)
    group = group_of(client)
    with background(lambda: group.consume(["healthy"], IdleHandler())), group:
        wait_until(lambda: bool(fake.request_bodies(OFFSET_FETCH)))
        since_s = time.monotonic()
    assert time.monotonic() - since_s < 5


@pytest.mark.parametrize("kind", [OFFSET_FETCH, LIST_OFFSETS], ids=["OffsetFetch", "ListOffsets"])
def test_partition_without_acl_is_raised_after_each_backoff_and_delays_no_other(fake: FakeKafka, kind: Api) -> None:
    fake.move_leader(*OFFLINE, 1)
    topic_id = fake.controller.topic("offline").topic_id

    def refuse(body: dict[str, Any]) -> dict[str, Any]:
        for group in body["groups"]:
            for topic in group["topics"]:
                for row in topic["partitions"] if topic["topic_id"] == topic_id else ():
                    row["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return body

    if kind is OFFSET_FETCH:
        fake.edit_replies(kind, refuse)
    else:
        fake.refuse(kind, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ALWAYS, partition=OFFLINE)
    with (
        client_of(fake.bootstrap_servers, retry_backoff_ms=100, retry_backoff_max_ms=100) as client,
        consumer_of(client) as consumer,
    ):
        read, since_s = reading(consumer, HEALTHY, OFFLINE), time.monotonic()
        read.until(lambda: read.rows["healthy"] == 5 and len(read.errors) >= 3)
        for error in read.errors:
            assert getattr(error, "code", None) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert "offline-0" in str(error)
        assert time.monotonic() - since_s > 2 * 0.08
        assert len(fake.request_bodies(kind)) < 3 * len(read.errors)
        fake.clear_faults()
        read.until_rows(offline=5)


def test_recovery_waits_for_a_silent_leader_without_a_busy_loop(fake: FakeKafka) -> None:
    with (
        client_of(fake.bootstrap_servers, default_api_timeout_ms=200) as client,
        consumer_of(client, group=None) as consumer,
    ):
        reading(consumer, HEALTHY).until_rows(healthy=5)
        fake.delay_replies(LIST_OFFSETS, 5, ALWAYS)
        loss, since_s = DataLoss("out of range", topic="healthy", partition=0), time.monotonic()
        with (
            patch.object(StartLookup, "wait", autospec=True, side_effect=StartLookup.wait) as wait,
            pytest.raises(DeadlineExceeded),
        ):
            partitions_of(consumer).recover(loss, lambda: True, 1_000)
        assert time.monotonic() - since_s < 2
        assert 0 < wait.call_count < 50
        fake.clear_faults()


def test_position_names_the_silent_coordinator(fake: FakeKafka) -> None:
    fake.delay_replies(OFFSET_FETCH, 5)
    with client_of(fake.bootstrap_servers, default_api_timeout_ms=1_000) as client, consumer_of(client) as consumer:
        consumer.assign([HEALTHY])
        # Both waits have the same limit: that for the position, and that of the request.
        waits = "healthy-0 has no start offset yet: the coordinator does not"
        request = f"no start offset for 1 s: OffsetFetch .*{fake.bootstrap_servers}: no reply"
        with pytest.raises(DeadlineExceeded, match=f"{waits}|{request}"):
            consumer.position(HEALTHY)
