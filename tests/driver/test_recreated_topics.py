"""Queries whose topics are deleted and created again, without Spark."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from protocol import Client, CommittedOffset
from protocol.cluster import unknown_topic
from protocol.errors import DataLoss
from protocol.group.commits.committed_offsets import commit_offsets
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka import consumer_group
from protocol.testing.fake_kafka.offsets import Committed
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.driver.changing_logs import NEW_ID, OLD_ID, next_end, ranges
from tests.driver.members import (
    EAGER_OPTIONS,
    KIP_848_OPTIONS,
    LATEST,
    QUICK,
    Cluster,
    member_of,
    reader_of,
    wait_for_rebalance,
)
from tests.protocol.consumer.conftest import EAGER
from tests.protocol.fetch.consuming import client_of, records
from tests.support.wait_until import wait_until


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
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 100)
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


@pytest.mark.parametrize("answers", [True, False], ids=["brokers agree", "no broker answers"])
def test_available_now_waits_for_the_assignment_of_a_recreated_topic(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(consumer_group, "HEARTBEAT_INTERVAL_MS", 500)
    if not answers:
        monkeypatch.setattr(Client, "ids_at_brokers", lambda self, topics, _: {topic: set() for topic in topics})
    with Cluster(20) as cluster:
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **KIP_848_OPTIONS)
        reader.prepareForTriggerAvailableNow()
        read = next_end(reader, reader.initialOffset())
        with cluster.changed:
            cluster.delete_topic("a")
            cluster.create("a", 30)
        end = next_end(reader, read)
        assert ranges(reader, read, end) == [(0, 0, 30)]
        reader.stop()


def test_classic_member_reads_no_partition_of_a_recreated_topic_from_the_group_offset() -> None:
    """It may be of the deleted topic, also in a partition that another member has read."""
    options = {**EAGER_OPTIONS, **QUICK}
    with FakeKafka() as cluster:
        cluster.create_topic("a", 2)
        former = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        begin = {"a": {"0": 0}, "@ids": next_end(former, former.initialOffset())["@ids"]}
        former.stop()
        with cluster.changed:
            cluster.delete_topic("a")
            cluster.create_topic("a", 2)
            for number in (0, 1):
                cluster.rewrite("a", number, records(0, 1, last_offset=29))
        cluster.offsets.committed["g"] = {("a", 0): Committed(10, -1, ""), ("a", 1): Committed(15, -1, "")}
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        end = next_end(reader, begin)
        assert ranges(reader, begin, end) == [(0, 0, 30), (1, 0, 30)]
        reader.stop()


def test_start_in_the_deleted_topic_is_not_committed_in_the_new_one() -> None:
    """A new query of the group would start there, and skip the records before silently."""
    with Cluster(20) as cluster:
        options = {"kafka.group.protocol": "none", "onTopicRecreated": "fail", **LATEST}
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        reader.query.starting_offsets(reader.query.deadline())
        cluster.delete_topic("a")
        cluster.create("a", 30)
        with pytest.raises(DataLoss, match="deleted and created again"):
            next_end(reader, reader.initialOffset())
        reader.stop()
        assert cluster.committed_offsets("g") == {}


@pytest.mark.parametrize("ids", [(OLD_ID, NEW_ID), (NO_TOPIC_ID, NO_TOPIC_ID)], ids=["with ids", "without ids"])
def test_topic_deleted_before_the_first_batch_is_forgotten_with_its_start(
    monkeypatch: pytest.MonkeyPatch, ids: tuple[bytes, bytes]
) -> None:
    """Otherwise a topic that is created under its name is read from the offset in the deleted one."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 100)
    options = dict.fromkeys(("kafka.group.id", "kafka.group.protocol", "kafka.auto.offset.reset"))
    options |= {"startingOffsets": "latest", "failOnDataLoss": "false"}
    with FakeKafka() as kafka:
        kafka.create_topic("a", 1, topic_id=ids[0])
        kafka.rewrite("a", 0, records(0, 1, last_offset=19))
        reader = reader_of(kafka.bootstrap_servers, "a", "g", **options)
        reader.query.starting_offsets(reader.query.deadline())
        kafka.delete_topic("a")
        deleted = next_end(reader, reader.initialOffset())
        assert "a" not in deleted
        kafka.create_topic("a", 1, topic_id=ids[1])
        kafka.rewrite("a", 0, records(0, 1, last_offset=29))
        end = next_end(reader, deleted)
        assert ranges(reader, deleted, end) == [(0, 0, 30)]
        reader.stop()


@pytest.mark.parametrize(
    "start", [LATEST, {"kafka.auto.offset.reset": None, "startingOffsets": '{"a": {"0": 15}}'}], ids=["latest", "json"]
)
def test_restarted_member_does_not_apply_starting_offsets_to_recreated_topic(
    monkeypatch: pytest.MonkeyPatch, start: dict[str, str | None]
) -> None:
    """Until the group has assigned the new topic, the query's offsets have no partition, as before its first batch."""
    monkeypatch.setattr(consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    with Cluster(20) as cluster:
        options = {**KIP_848_OPTIONS, **start}
        former = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        ends = [next_end(former, former.initialOffset())]
        former.stop()
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        assert next_end(reader, ends[-1]) == ends[-1]
        released = threading.Event()
        cluster.before[CONSUMER_GROUP_HEARTBEAT] = lambda body: released.wait(20)
        with cluster.changed:
            cluster.delete_topic("a")
            cluster.create("a", 30)

        def plans(end: dict[str, int] | None) -> bool:
            ends.append(next_end(reader, ends[-1]))
            return ends[-1].get("a") == end

        wait_until(lambda: plans(None))
        released.set()
        wait_until(lambda: plans({"0": 30}))
        assert ranges(reader, ends[-2], ends[-1]) == [(0, 0, 30)]
        reader.stop()


@pytest.mark.parametrize("protocol", ["classic", "none"])
def test_starting_offsets_do_not_apply_to_topic_recreated_before_the_first_trigger(protocol: str) -> None:
    with Cluster(20) as cluster:
        options = {"kafka.auto.offset.reset": None, "startingOffsets": '{"a": {"0": 15}}'}
        options |= {"kafka.group.protocol": protocol, "onTopicRecreated": "earliest"}
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


def test_batch_of_a_recreated_topic_without_a_partition_is_not_delayed() -> None:
    """Neither by a search for that partition, nor by `minOffsetsPerTrigger`: the loss is reported at once."""
    options = {**QUICK, "onTopicRecreated": "earliest", "minOffsetsPerTrigger": "1000", "kafka.group.protocol": "none"}
    with FakeKafka() as cluster:
        cluster.create_topic("a", 2)
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        read = next_end(reader, reader.initialOffset())
        with cluster.changed:
            cluster.delete_topic("a")
            cluster.create_topic("a", 1)
            cluster.write("a", 0, records(0, 30))
        requests = len(cluster.request_bodies("Metadata"))
        end = next_end(reader, read)
        assert end["a"] == {"0": 30}
        assert next_end(reader, end) == end
        assert len(cluster.request_bodies("Metadata")) <= requests + 3
        reader.stop()
