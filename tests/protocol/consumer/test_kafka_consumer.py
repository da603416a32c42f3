"""Every method of the polling consumer, next to the same call of librdkafka if there is one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing

import confluent_kafka as other
import pytest

from protocol import Client, ConsumerGroup, KafkaConsumer
from protocol.errors import DataLoss, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.group.membership.assignment import TopicSubscription
from protocol.testing import MockConsumer
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.consumer.conftest import EAGER, KIP_848, NewConsumer
from tests.protocol.consumer.members import IdleHandler, Listener, consumer_of, read
from tests.protocol.fetch.consuming import produce
from tests.support import librdkafka
from tests.support.small_cluster import SmallCluster
from tests.support.wait_until import wait_until

FIRST_MS, DELETED, COUNT, FIRST_EPOCH = 1_700_000_000_000, 4, 20, 0


@pytest.fixture(scope="module")
def orders(kafka1: LocalKafka, lasting_topic: TopicFactory) -> str:
    """Return a topic whose partitions 0 and 1 have 20 records each, one per second; the first four of partition 0
    are deleted."""
    name = lasting_topic(2)
    producer = other.Producer({"bootstrap.servers": kafka1.bootstrap_servers})
    for number in range(2 * COUNT):
        when_ms = FIRST_MS + number // 2 * 1_000
        producer.produce(name, b"%d" % number, partition=number % 2, timestamp=when_ms)
    assert producer.flush(30) == 0
    admin = librdkafka.admin(kafka1)
    for deleted in admin.delete_records([other.TopicPartition(name, 0, DELETED)]).values():
        deleted.result(30)
    return name


@pytest.fixture
def librdkafka_consumer(kafka1: LocalKafka, group: str) -> Iterator[other.Consumer]:
    """Yield librdkafka's consumer, of the same group."""
    with closing(librdkafka.consumer(kafka1, group)) as consumer:
        yield consumer


# -- queries --------------------------------------------------------------------------------------


def test_log_start_and_end_offsets_equal_librdkafkas(
    orders: str, new_consumer: NewConsumer, librdkafka_consumer: other.Consumer
) -> None:
    ours, keys = new_consumer(), [(orders, 0), (orders, 1)]
    begins, ends = ours.beginning_offsets(keys), ours.end_offsets(keys)
    watermarks = {
        key: librdkafka_consumer.get_watermark_offsets(other.TopicPartition(*key), timeout=20) for key in keys
    }
    assert {key: (begins[key], ends[key]) for key in keys} == watermarks == {keys[0]: (4, 20), keys[1]: (0, 20)}


def test_offsets_by_timestamp_equal_librdkafkas(
    orders: str, new_consumer: NewConsumer, librdkafka_consumer: other.Consumer
) -> None:
    late_ms = FIRST_MS + 10**9
    times_ms = {(orders, 0): FIRST_MS + 9_500, (orders, 1): late_ms}
    ours = new_consumer().offsets_for_times(times_ms)
    requested = [other.TopicPartition(*key, time_ms) for key, time_ms in times_ms.items()]
    first, none = librdkafka_consumer.offsets_for_times(requested, timeout=20)
    offset = ours[orders, 0]
    assert offset is not None
    assert (offset.offset, offset.timestamp_ms) == (first.offset, FIRST_MS + 10_000)
    assert (ours[orders, 1], none.offset) == (None, other.OFFSET_END)


# -- assigned partitions --------------------------------------------------------------------------


def test_manually_assigned_partitions_are_read(
    orders: str, new_consumer: NewConsumer, librdkafka_consumer: other.Consumer
) -> None:
    ours = new_consumer()
    ours.assign([(orders, 0)])
    librdkafka_consumer.assign([other.TopicPartition(orders, 0, other.OFFSET_BEGINNING)])  # needs no coordinator
    assert (ours.assignment, len(librdkafka_consumer.assignment())) == ({(orders, 0)}, 1)
    messages = librdkafka_consumer.consume(COUNT - DELETED, timeout=20)
    records = ours.poll(20_000)
    assert [(message.offset, message.value, message.timestamp_ms) for message in records.messages()] == [
        (message.offset(), message.value(), message.timestamp()[1]) for message in messages
    ]
    assert list(records) == [(orders, 0)]
    assert [batch.schema.names[0] for batch in records[orders, 0]] == ["key"]
    assert (
        ours.position((orders, 0)) == librdkafka_consumer.position([other.TopicPartition(orders, 0)])[0].offset == COUNT
    )
    assert ours.current_lag((orders, 0)) == 0
    ours.assign([(orders, 1)])
    assert read(ours, COUNT) == [(1, offset) for offset in range(COUNT)]
    with pytest.raises(UsageError, match="not assigned"):
        ours.position((orders, 0))
    with pytest.raises(UsageError, match="unsubscribe first"):
        ours.subscribe([orders])


# -- start offsets --------------------------------------------------------------------------------


def test_reset_by_duration_counts_from_now(orders: str, new_consumer: NewConsumer) -> None:
    ago_s = time.time() - FIRST_MS / 1000 - 9.5
    ours = new_consumer(**{"auto.offset.reset": f"by_duration:PT{ago_s:.1f}S"})
    ours.assign([(orders, 0)])
    position = ours.position((orders, 0))
    # Its start offset is one second per record later than at the time of the call.
    assert 10 <= position <= 11 + time.time() - FIRST_MS / 1000 - 9.5 - ago_s


def test_reset_by_duration_skips_no_records_written_during_its_requests(
    fake: SmallCluster, fake_client: Client
) -> None:
    """Without a record at or after the time, a second request lists the end of the log."""

    def write(body: object) -> None:
        if len(fake.request_bodies(LIST_OFFSETS)) == 2:
            fake.produce("fresh", b"new", partition=0)

    fake.create_topic("fresh", 1)
    fake.before[LIST_OFFSETS] = write
    with consumer_of(fake_client, group=None, **{"auto.offset.reset": "by_duration:PT1H"}) as consumer:
        consumer.assign([("fresh", 0)])
        assert consumer.position(("fresh", 0)) == 0
    assert len(fake.request_bodies(LIST_OFFSETS)) >= 3


@pytest.mark.parametrize(("committed", "reset", "begin"), [(2, "latest", 20), (99, "earliest", 4), (99, "none", None)])
def test_committed_offset_outside_the_log_is_reset(
    client: Client, group: str, orders: str, new_consumer: NewConsumer, committed: int, reset: str, begin: int | None
) -> None:
    commit_offsets(client, group, {(orders, 0): CommittedOffset(committed)}, client.deadline())
    ours = new_consumer(**{"auto.offset.reset": reset})
    ours.assign([(orders, 0)])
    if begin is None:
        with pytest.raises(DataLoss, match=f"{committed}"):
            ours.poll(20_000)
    else:
        wait_until(lambda: ours.poll(50) or ours.position((orders, 0)) == begin)


# -- commits --------------------------------------------------------------------------------------


def test_commits_are_exchanged_with_librdkafka(
    orders: str, new_consumer: NewConsumer, librdkafka_consumer: other.Consumer
) -> None:
    ours, keys = new_consumer(), [(orders, 0), (orders, 1)]
    assert ours.committed(keys) == dict.fromkeys(keys)
    ours.commit_sync({keys[0]: CommittedOffset(7, metadata="seven")})
    observed, none = librdkafka_consumer.committed([other.TopicPartition(*key) for key in keys], timeout=20)
    assert (observed.offset, none.offset) == (7, other.OFFSET_INVALID)
    # confluent-kafka adds a zero byte to the metadata, and reads beyond the end.
    assert str(observed.metadata).startswith("seven")
    librdkafka_consumer.commit(offsets=[other.TopicPartition(orders, 1, 3, "three")], asynchronous=False)
    assert ours.committed(keys)[keys[1]] == CommittedOffset(3, metadata="three\x00")
    ours.assign(keys)
    assert [ours.position(key) for key in keys] == [7, 3]


def test_positions_are_committed_with_the_leader_epoch_of_the_last_record(
    orders: str, new_consumer: NewConsumer, librdkafka_consumer: other.Consumer
) -> None:
    """KIP-320: a reader that starts there is notified of a truncation. librdkafka commits the same epoch."""
    ours, key = new_consumer(), (orders, 0)
    ours.assign([key])
    read(ours, COUNT - DELETED)
    ours.commit_sync()
    assert ours.committed([key]) == {key: CommittedOffset(COUNT, FIRST_EPOCH)}
    ours.seek(key, 7)
    ours.commit_sync()
    assert ours.committed([key]) == {key: CommittedOffset(7)}, "no reader has read the record before it"
    librdkafka_consumer.assign([other.TopicPartition(orders, 0, 7)])
    read_by_them = librdkafka_consumer.consume(COUNT - 7, timeout=30)
    librdkafka_consumer.commit(message=read_by_them[-1], asynchronous=False)
    assert ours.committed([key])[key].leader_epoch == FIRST_EPOCH


def test_refused_subscription_leaves_the_assigned_partitions(fake_client: Client) -> None:
    with consumer_of(fake_client) as consumer:
        consumer.assign([("orders", 0)])
        with pytest.raises(UsageError, match="unsubscribe first"):
            consumer.subscribe(["other"])
        assert consumer.subscription == TopicSubscription()
        assert consumer.assignment == {("orders", 0)}


def test_topic_name_instead_of_a_list_is_refused() -> None:
    """It would be a collection of letters."""
    properties = {"bootstrap.servers": "127.0.0.1:9092", "group.id": "etl"}
    with KafkaConsumer(properties) as consumer, MockConsumer() as mock, ConsumerGroup(properties) as members:
        for subscribe in (consumer.subscribe, mock.subscribe, lambda topics: members.consume(topics, IdleHandler())):
            with pytest.raises(UsageError, match=r"topics is a str; pass a list: \['orders'\]"):
                subscribe("orders")
        assert consumer.subscription == TopicSubscription()


# -- membership -----------------------------------------------------------------------------------


def test_listener_is_called_for_each_rebalance_and_commits_before(
    client: Client, orders: str, group: str, new_consumer: NewConsumer, protocol: dict[str, object]
) -> None:
    listener, automatic = Listener(), {**protocol, "enable.auto.commit": True}
    first, two = new_consumer(**automatic), new_consumer(**automatic)
    first.subscribe([orders], listener)
    assert len(read(first, 2 * COUNT - DELETED)) == 2 * COUNT - DELETED
    assert (first.subscription.names, listener.calls, listener.numbers) == ({orders}, ["assigned"], [[0, 1]])
    assert first.assignment == {(orders, 0), (orders, 1)}
    two.subscribe([orders])
    again: list[int] = []

    def shared() -> bool:
        again.extend(consumer.poll(20).num_rows for consumer in (first, two))
        return len(first.assignment) == len(two.assignment) == 1

    wait_until(shared)
    retained = [number for _, number in first.assignment]
    numbers = [number for _, number in two.assignment]
    assert sorted(retained + numbers) == [0, 1]
    if protocol == EAGER:
        assert (listener.calls[1:], listener.numbers[1:]) == (["revoked", "assigned"], [[0, 1], retained])
    else:
        assert (listener.calls[1:], listener.numbers[1:]) == (["revoked"], [numbers])
    # The first member's offsets were committed before, so the other one reads no record again.
    assert (two.position((orders, numbers[0])), sum(again)) == (COUNT, 0)
    two.close()
    wait_until(lambda: first.poll(20) or len(first.assignment) == 2)
    first.close()
    assert (listener.calls[-1], listener.numbers[-1]) == ("revoked", [0, 1])


def test_pattern_subscription_finds_new_topics(
    client: Client, kafka1: LocalKafka, topic1: TopicFactory, new_consumer: NewConsumer
) -> None:
    first = topic1(prefix="pattern-a")
    produce(kafka1, first, range(5))
    ours = new_consumer()
    ours.subscribe(re.compile("pattern-.*"))
    read(ours, 5)
    second = topic1(prefix="pattern-b")
    produce(kafka1, second, range(3))
    read(ours, 3)
    assert {topic for topic, _ in ours.assignment} == {first, second}
    ours.subscribe([second])
    wait_until(lambda: ours.poll(20) or {topic for topic, _ in ours.assignment} == {second})
    ours.unsubscribe()
    assert (ours.assignment, ours.subscription.names) == (frozenset(), frozenset())


def test_broker_side_pattern_is_matched_by_brokers(orders: str, new_consumer: NewConsumer) -> None:
    if version_numbers(KAFKA_VERSION) < (4, 1):
        pytest.skip("brokers match patterns since Kafka 4.1")
    ours = new_consumer(**KIP_848)
    ours.subscribe(re.compile("no such topic"), re2=f"{orders[:-1]}.")
    wait_until(lambda: ours.poll(20) or len(ours.assignment) == 2)


def test_subscription_to_unknown_topic_is_a_warning(fake_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A misspelled name reads nothing, and raises no error."""
    with consumer_of(fake_client, EAGER, "warned") as consumer:
        consumer.subscribe(["orders", "order"])
        consumer.poll(0)
        wait_until(lambda: "group warned" in caplog.text)
    warnings = [text for text in caplog.messages if "group warned" in text]
    assert warnings == ["group warned: the cluster does not have the subscribed topic(s) order"]
