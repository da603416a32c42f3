"""A query as a group member, without Spark: triggers during rebalances, topic changes and failed commits."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pytest

from protocol import Client, CommittedOffset
from protocol.cluster import unknown_topic
from protocol.config import parse_consumer
from protocol.errors import DataLoss
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.group.membership.assignment import EndReason, TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import LATEST as LATEST_TIME
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka import consumer_group
from protocol.testing.fake_kafka.offsets import Committed
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.driver.changing_logs import next_end, ranges
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.fetch.consuming import client_of, records
from tests.support.member_queries import fill
from tests.support.small_cluster import SmallCluster
from tests.support.wait_until import wait_until

EAGER_OPTIONS = {f"kafka.{key}": str(value) for key, value in EAGER.items()}


def reader_of(bootstrap_servers: str, topic: str, group: str, **options: str | None) -> KafkaStreamReader:
    settings = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    settings |= {"kafka.group.protocol": "classic", "kafka.auto.offset.reset": "earliest"}
    chosen = {name: value for name, value in {**settings, **options}.items() if value is not None}
    return KafkaStreamReader(parse_source_options(chosen, streaming=True))


@contextmanager
def member_of(client: Client, topic: str, group: str, properties: dict[str, object]) -> Iterator[Membership]:
    """Join as a member that owns all partitions."""
    config = parse_consumer({"group.id": group, **properties})
    with Membership(client, config, TopicSubscription(frozenset({topic}))) as member:
        assert member.poll_rebalance(client.deadline(20_000)).pending_reason is None
        yield member


@pytest.mark.parametrize(
    "properties",
    [EAGER, COOPERATIVE, pytest.param(KIP_848, marks=NEEDS_KIP_848)],
    ids=["eager", "cooperative", "kip848"],
)
def test_available_now_waits_for_assignment(
    kafka1: LocalKafka, topic1: TopicFactory, properties: dict[str, str]
) -> None:
    """Another member owns all partitions and revokes some of them slowly."""
    name, group = topic1(2), f"group-{uuid.uuid4().hex[:8]}"
    fill(kafka1, name, 2, 10)
    options = {f"kafka.{key}": str(value) for key, value in properties.items()}
    reader = reader_of(kafka1.bootstrap_servers, name, group, **options)
    with (
        client_of(kafka1) as client,
        member_of(client, name, group, properties) as membership,
        ThreadPoolExecutor() as pool,
    ):
        reader.prepareForTriggerAvailableNow()
        planned = pool.submit(reader.latestOffset, reader.initialOffset(), reader.getDefaultReadLimit())
        while not planned.done():
            if membership.rebalance_pending is not None:
                wait([planned], 0.3)
                membership.poll_rebalance(client.deadline(100))
            wait([planned], 0.05)
        (end,) = planned.result()[name].values()
        assert end == 10
        reader.stop()


# -- starting offset of an assigned partition ---------------------------------------------------------


@pytest.mark.parametrize("start", [{"kafka.auto.offset.reset": None, "startingOffsets": "earliest"}, {}])
def test_out_of_range_group_offset_error_names_remedial_options(start: dict[str, Any]) -> None:
    """The option kafka.auto.offset.reset is refused if the query does not start from its group's offsets."""
    with Cluster(20) as cluster:
        cluster.offsets.committed["g"] = {("a", 0): Committed(30, -1, "")}
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **{"kafka.auto.offset.reset": "none", **start})
        with pytest.raises(DataLoss, match="group g: its offset 30 of a-0 is out of range") as raised:
            next_end(reader, reader.initialOffset())
        assert "failOnDataLoss=false" in str(raised.value)
        assert ("kafka.auto.offset.reset" in str(raised.value)) == (not start)
        reader.stop()


# -- topics deleted and recreated ---------------------------------------------------------------------

QUICK = {"kafka.metadata.max.age.ms": "100", "kafka.heartbeat.interval.ms": "50", "failOnDataLoss": "false"}
KIP_848_OPTIONS = {**QUICK, "kafka.heartbeat.interval.ms": None, "kafka.group.protocol": "consumer"}
LATEST = {"kafka.auto.offset.reset": "latest"}


class Cluster(FakeKafka):
    """One broker, and topic `a` with one partition."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.create("a", end)

    def create(self, topic: str, end: int) -> None:
        self.create_topic(topic, 1)
        self.rewrite(topic, 0, records(0, 1, last_offset=end - 1))


def second_member(client: Client) -> Membership:
    """Return a member of the classic group `g` that has not joined yet."""
    subscription = TopicSubscription(frozenset({"orders"}))
    return Membership(client, parse_consumer({"group.id": "g", **EAGER}), subscription)


def wait_for_rebalance(reader: KafkaStreamReader) -> None:
    assert reader.query.membership is not None
    member = reader.query.membership.membership
    assert member is not None
    wait_until(lambda: member.rebalance_pending is not None)


@pytest.mark.parametrize("recreated_after", ["a trigger", "the rebalance"])
def test_recreated_topic_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch, recreated_after: str) -> None:
    """Neither the query's starting offset nor its position in the old topic applies to the new one."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 100)
    with Cluster(20) as cluster:
        cluster.create("b", 3)
        reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **LATEST, **QUICK)
        end = next_end(reader, reader.initialOffset())
        assert (end["a"], end["b"]) == ({"0": 20}, {"0": 3})
        end = next_end(reader, end)
        wait_until(lambda: cluster.committed_offsets("g") == {("a", 0): 20, ("b", 0): 3})
        cluster.rewrite("a", 0, records(0, 1, last_offset=24))
        end = next_end(reader, end)
        assert end["a"] == {"0": 25}
        cluster.delete_topic("a")
        wait_for_rebalance(reader)
        if recreated_after == "a trigger":
            end = next_end(reader, end)
            assert "a" not in end
        cluster.create("a", 30)
        committed = []
        cluster.before[JOIN_GROUP] = lambda body: committed.append(cluster.committed_offsets("g").get(("a", 0)))
        begin = end

        def planned() -> bool:
            nonlocal end
            end = next_end(reader, begin)
            return "a" in end and end["a"] == {"0": 30}

        wait_until(planned)
        (task,) = reader.partitions(begin, end)
        (source_range,) = task.ranges
        assert (source_range.topic, source_range.from_offset, source_range.until_offset) == ("a", 0, 30)
        assert set(committed) <= {None, 0}, "the position in the old topic is not committed for the new one"
        reader.stop()


@pytest.mark.parametrize("committed", [0, 10])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_standby_member_reads_recreated_topic_from_group_offset(
    monkeypatch: pytest.MonkeyPatch, fail: str, committed: int
) -> None:
    """The topic is recreated while another member owns its partition. The query has read nothing, so loses nothing."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 100)
    options = {**EAGER_OPTIONS, **QUICK, "kafka.client.id": "z-standby", "failOnDataLoss": fail}
    with Cluster(20) as cluster, client_of(cluster.bootstrap_servers, client_id="a-owner") as client:
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        with member_of(client, "a", "g", EAGER) as owner, ThreadPoolExecutor() as pool:
            first = pool.submit(next_end, reader, reader.initialOffset())
            while not first.done():
                if owner.rebalance_pending is not None:
                    owner.poll_rebalance(client.deadline(500))
                wait([first], 0.05)
            assert first.result() == {}
            cluster.delete_topic("a")
            cluster.create("a", 30)
            if committed:
                cluster.offsets.committed["g"] = {("a", 0): Committed(committed, -1, "")}
        ends = [first.result()]

        def planned() -> bool:
            ends.append(next_end(reader, ends[-1]))
            return "a" in ends[-1]

        wait_until(planned)
        assert ranges(reader, {}, ends[-1]) == [(0, committed, 30)]
        reader.stop()


def test_recreated_topic_is_read_after_its_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it, another query may have the partition of the new topic (KIP-848)."""
    monkeypatch.setattr(consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    with Cluster(20) as cluster:
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **KIP_848_OPTIONS)
        read = next_end(reader, reader.initialOffset())
        assert read["a"] == {"0": 20}
        released = threading.Event()
        cluster.before[CONSUMER_GROUP_HEARTBEAT] = lambda body: released.wait(20)
        with cluster.changed:
            cluster.delete_topic("a")
            cluster.create("a", 30)
        asked, ends = len(cluster.request_bodies("Metadata")), [read]

        def plans_with_new_metadata() -> bool:
            ends.append(next_end(reader, read))
            return len(cluster.request_bodies("Metadata")) > asked + 1

        wait_until(plans_with_new_metadata)
        assert all(end.get("a") in (None, {"0": 20}) for end in ends)
        released.set()

        def planned() -> bool:
            return next_end(reader, read).get("a") == {"0": 30}

        wait_until(planned)
        assert ranges(reader, read, next_end(reader, read)) == [(0, 0, 30)]
        reader.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_recreated_topic_with_fewer_partitions_is_no_deleted_one(monkeypatch: pytest.MonkeyPatch, fail: str) -> None:
    """It is noticed before the group has assigned the new topic; the missing partition was not deleted alone."""
    monkeypatch.setattr(consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    options = {**KIP_848_OPTIONS, "failOnDataLoss": fail}
    with FakeKafka() as cluster:
        cluster.create_topic("a", 2)
        for number in (0, 1):
            cluster.rewrite("a", number, records(0, 1, last_offset=19))
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        ends = [next_end(reader, reader.initialOffset())]
        assert ends[0]["a"] == {"0": 20, "1": 20}
        with cluster.changed:
            cluster.delete_topic("a")
            cluster.create_topic("a", 1)
            cluster.rewrite("a", 0, records(0, 1, last_offset=29))

        def planned() -> bool:
            ends.append(next_end(reader, ends[-1]))
            return ends[-1].get("a") == {"0": 30}

        if fail == "true":
            with pytest.raises(DataLoss, match=r"deleted and created again.* set onTopicRecreated=earliest"):
                wait_until(planned)
        else:
            wait_until(planned)
            assert ranges(reader, ends[-2], ends[-1]) == [(0, 0, 30)]
        reader.stop()


def test_member_that_has_read_the_deleted_topic_starts_at_the_group_offset_in_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another member has read it: reading from the start would double rows, and set the group's offset back."""
    monkeypatch.setattr(consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    with Cluster(20) as cluster:
        former = reader_of(cluster.bootstrap_servers, "a", "g", **KIP_848_OPTIONS)
        ends = [next_end(former, former.initialOffset())]
        former.stop()
        cluster.delete_topic("a")
        cluster.create("a", 100)
        with client_of(cluster.bootstrap_servers) as client:
            commit_offsets(client, "g", {("a", 0): CommittedOffset(90)}, client.deadline())
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **KIP_848_OPTIONS)

        def planned() -> bool:
            ends.append(next_end(reader, ends[-1]))
            return ends[-1].get("a") == {"0": 100}

        wait_until(planned)
        assert ranges(reader, ends[-2], ends[-1]) == [(0, 90, 100)]
        assert cluster.committed_offsets("g") == {("a", 0): 90}
        reader.stop()


def test_member_does_not_apply_starting_offsets_to_topic_recreated_before_its_first_trigger() -> None:
    with Cluster(20) as cluster:
        options = {"kafka.auto.offset.reset": None, "startingOffsets": '{"a": {"0": 15}}'}
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        reader.query.starting_offsets(reader.query.deadline())
        cluster.delete_topic("a")
        cluster.create("a", 30)
        end = next_end(reader, reader.initialOffset())
        assert ranges(reader, {}, end) == [(0, 0, 30)]
        reader.stop()


@pytest.mark.parametrize(
    ("start", "read"),
    [('{"a": {"0": 15}}', [(0, 15, 20)]), ("latest", []), (None, [])],
    ids=["json", "latest", "group"],
)
def test_member_starts_at_starting_offsets_in_a_topic_without_id(
    start: str | None, read: list[tuple[int, int, int]]
) -> None:
    """Brokers before Kafka 2.8 have no ids of topics: an unknown id is no evidence of a recreated topic."""
    with FakeKafka() as kafka:
        kafka.create_topic("a", 1, topic_id=NO_TOPIC_ID)
        kafka.rewrite("a", 0, records(0, 1, last_offset=19))
        options = LATEST if start is None else {"kafka.auto.offset.reset": None, "startingOffsets": start}
        reader = reader_of(kafka.bootstrap_servers, "a", "g", **options)
        end = next_end(reader, reader.initialOffset())
        assert ranges(reader, {}, end) == read
        reader.stop()


# -- a paused driver ----------------------------------------------------------------------------------


def test_driver_paused_before_list_offsets_skips_offsets_read_by_other_members() -> None:
    """The driver resumes without its assignment; other members have read the records that arrived meanwhile."""
    with SmallCluster() as cluster:
        reader = reader_of(cluster.bootstrap_servers, "orders", "g")
        begin = next_end(reader, reader.initialOffset())
        membership = reader.query.membership.membership

        def stand_still(body: Any) -> None:
            del cluster.before[LIST_OFFSETS]
            with membership.changed:
                membership.machine._lose_assignment(EndReason("suspended"))
            cluster.grow(10)
            cluster.offsets.committed["g"].update({("orders", number): Committed(20, -1, "") for number in (0, 1)})
            cluster.grow(5)

        next_end(reader, begin)
        wait_until(lambda: set(cluster.committed_offsets("g").values()) == {10})
        cluster.before[LIST_OFFSETS] = stand_still
        end = next_end(reader, begin)
        assert ranges(reader, begin, end) == [(0, 20, 25), (1, 20, 25)]
        reader.stop()


def test_rebalance_during_list_offsets_is_handled_by_next_trigger() -> None:
    """The member owns its partitions until it rejoins; waiting for the group first would plan an empty batch."""
    with SmallCluster() as cluster, client_of(cluster.bootstrap_servers) as client, ThreadPoolExecutor() as pool:
        reader = reader_of(cluster.bootstrap_servers, "orders", "g", maxOffsetsPerTrigger="8", **EAGER_OPTIONS)
        begin = next_end(reader, reader.initialOffset())
        membership = second_member(client)
        joining = []

        def join(body: Any) -> None:
            del cluster.before[LIST_OFFSETS]
            joining.append(pool.submit(membership.poll_rebalance, client.deadline(20_000)))
            wait_for_rebalance(reader)

        cluster.before[LIST_OFFSETS] = join
        end = next_end(reader, begin)
        assert ranges(reader, begin, end) == [(0, 4, 8), (1, 4, 8)]
        reader.stop()
        joining[0].result()
        membership.close()


# -- truncated logs -----------------------------------------------------------------------------------

FROM_EARLIEST = {"failOnDataLoss": "false", "startingOffsets": "earliest", "kafka.auto.offset.reset": None}


def asks_for_end_of_trigger(requests: list[Any]) -> bool:
    """Return True for the second request for latest offsets; the first one checks the group's offsets."""
    times = [body["topics"][0]["partitions"][0]["timestamp"] for body in requests]
    return times[-1] == LATEST_TIME and times.count(LATEST_TIME) == 2


@pytest.mark.parametrize("end", [12, 18])
def test_revocation_after_truncation_commits_end_of_completed_batch(end: int) -> None:
    """The log is truncated before the group's offset, after the trigger has fetched that, and grows to `end`."""
    with SmallCluster() as cluster, client_of(cluster.bootstrap_servers) as client, ThreadPoolExecutor() as pool:
        cluster.grow(10)
        cluster.offsets.committed["g"] = {("orders", number): Committed(20, 0, "") for number in (0, 1)}
        reader = reader_of(cluster.bootstrap_servers, "orders", "g", **FROM_EARLIEST, **EAGER_OPTIONS)
        requests: list[Any] = []

        def truncate(body: Any) -> None:
            requests.append(body)
            if not asks_for_end_of_trigger(requests):
                return
            del cluster.before[LIST_OFFSETS]
            for number in (0, 1):
                cluster.log("orders", number).truncate(10)
                cluster.set_leader_epoch("orders", number, 1)
                cluster.write("orders", number, records(10, end - 10, epoch=1))

        cluster.before[LIST_OFFSETS] = truncate
        after = next_end(reader, reader.initialOffset())
        assert ranges(reader, reader.initialOffset(), after) == [(0, 10, end), (1, 10, end)]
        membership = second_member(client)
        joining = pool.submit(membership.poll_rebalance, client.deadline(20_000))
        wait_for_rebalance(reader)
        next_end(reader, after)
        joining.result()
        offsets = {(committed.offset, committed.leader_epoch) for committed in cluster.offsets.committed["g"].values()}
        assert offsets == {(end, 1)}
        membership.close()
        reader.stop()


# -- failed commits -----------------------------------------------------------------------------------


def test_commit_does_not_wait_for_deleted_topic() -> None:
    """The topic is deleted between the last Metadata request and the commit."""
    with Cluster(20) as cluster:
        cluster.create("b", 3)
        options = {"kafka.group.protocol": "none", "kafka.auto.offset.reset": None, "startingOffsets": "earliest"}
        reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **options)
        next_end(reader, reader.initialOffset())
        commits = reader.query.commits
        manager = commits.manager
        assert manager is not None
        cluster.delete_topic("b")
        since_s = time.monotonic()
        for offset in (5, 6, 7):
            manager.stage({("a", 0): CommittedOffset(offset), ("b", 0): CommittedOffset(3)})
            commits.await_last_commit("the next run commits it")
            assert cluster.committed_offsets("g") == {("a", 0): offset}
        assert time.monotonic() - since_s < 24, "less than ten seconds for each commit"
        assert manager.healthy
        reader.stop()
