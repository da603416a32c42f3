"""Queries whose metadata come from one broker that has not heard of the newest topic, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol import Client, CommittedOffset
from protocol.base.clock import Deadline
from protocol.cluster.metadata import topic_id_text
from protocol.fetch.log_offsets import ListedOffset
from protocol.group.commits.committed_offsets import commit_offsets
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka import consumer_group
from spark_kafka_source.driver import discovery, start_offsets, trigger
from tests.driver.changing_logs import next_end, ranges
from tests.driver.members import EAGER_OPTIONS, KIP_848_OPTIONS, QUICK, Cluster, reader_of
from tests.protocol.fetch.consuming import client_of, records
from tests.support.wait_until import wait_until


@pytest.fixture
def cluster_of_two() -> Iterator[FakeKafka]:
    """Two brokers; the first leads topics `a` and `b`, of 20 records each, and coordinates group `g`."""
    with FakeKafka(2) as cluster:
        cluster.move_coordinator("g", 1)
        for topic in ("a", "b"):
            cluster.create_topic(topic)
            while cluster.leader(topic, 0) != 1:
                cluster.delete_topic(topic)
                cluster.create_topic(topic)
            cluster.write(topic, 0, records(0, 20))
        yield cluster


def recreate_behind_a_broker(cluster: FakeKafka, count: int = 30) -> int:
    """Recreate `a`, with `count` records, while one broker does not hear of it, and return that broker."""
    deleted_id = cluster.controller.topic("a").topic_id
    lagging = next(broker for broker in (1, 2) if broker != cluster.coordinators[0, "g"])
    with cluster.changed:
        cluster.isolate(lagging)
        while cluster.controller.topic("a").topic_id == deleted_id or cluster.leader("a", 0) == lagging:
            cluster.delete_topic("a")
            cluster.create_topic("a", 1)
        cluster.write("a", 0, records(0, count))
    return lagging


def test_member_keeps_its_position_if_one_broker_names_the_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group has assigned the new topic, so this one is not recreated again; ids have no order."""
    monkeypatch.setattr(consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    options = {**KIP_848_OPTIONS, "failOnDataLoss": "true", "onTopicRecreated": "earliest"}
    with FakeKafka(2) as cluster:
        cluster.create_topic("a", 1, 1)
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **options)
        ends = [next_end(reader, reader.initialOffset())]
        recreate_behind_a_broker(cluster)
        new_id = topic_id_text(cluster.controller.topic("a").topic_id)

        def has_read_new_topic() -> bool:
            ends.append(next_end(reader, ends[-1]))
            return ends[-1].get("a") == {"0": 30} and ends[-1]["@ids"] == {"a": new_id}

        def gets_stale_metadata() -> bool:
            ends.append(next_end(reader, ends[-1]))
            return reader.query.logs is not None and "a" in reader.query.logs.assignment.awaited

        wait_until(has_read_new_topic)
        read = ends[-1]
        wait_until(gets_stale_metadata)
        assert ends[-1] == read
        reader.stop()


@pytest.mark.parametrize("protocol", ["none", "classic"])
@pytest.mark.parametrize(("count", "leader", "epoch"), [(30, 2, 0), (5, 1, 0), (20, 1, 3)])
def test_query_waits_until_brokers_agree_about_a_recreated_topic(
    protocol: str, count: int, leader: int, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If it believed the one that lags behind, it would read the new topic from its start again and again.

    With fewer records than before at the same leader, or as many in a newer epoch, it would take the topic for a
    truncated log.
    """
    options = {"kafka.group.protocol": protocol, "onTopicRecreated": "earliest", "kafka.metadata.max.age.ms": "50"}
    options["failOnDataLoss"] = "true"
    with FakeKafka(2) as cluster:
        cluster.move_coordinator("g", 1)
        cluster.create_topic("a", 1)
        while cluster.leader("a", 0) != leader:
            cluster.delete_topic("a")
            cluster.create_topic("a", 1)
        cluster.write("a", 0, records(0, 20))
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **{**QUICK, **options})
        read = next_end(reader, reader.initialOffset())
        lagging = recreate_behind_a_broker(cluster, count)
        cluster.set_leader_epoch("a", 0, epoch)
        cluster.rewrite("a", 0, records(0, count, epoch=epoch))
        ends = [read]

        def awaits_topic() -> bool:
            ends.append(next_end(reader, read))
            return reader.query.logs is not None and "a" in reader.query.logs.assignment.awaited

        wait_until(awaits_topic)
        for _ in range(20):
            ends.append(next_end(reader, read))
        assert ends == [read] * len(ends)
        assert "nothing is read from it for now: brokers do not agree whether it was recreated" in caplog.text
        cluster.isolate(lagging, False)

        def planned() -> bool:
            ends.append(next_end(reader, read))
            return ends[-1] != read

        wait_until(planned)
        assert ranges(reader, read, ends[-1]) == [(0, 0, count)]
        reader.stop()


def test_truncated_log_delays_no_other_topic_while_too_few_brokers_answer(
    cluster_of_two: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The log may be that of a recreated topic."""
    cluster = cluster_of_two
    options = {**QUICK, "kafka.group.protocol": "none", "kafka.request.timeout.ms": "2000"}
    reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **options)
    read = next_end(reader, reader.initialOffset())
    cluster.edit_replies("Metadata", lambda body: b"", broker=2)
    cluster.truncate_log("a", 0, 5)
    cluster.write("b", 0, records(20, 10))
    end = next_end(reader, read)
    assert (end["a"], end["b"]) == ({"0": 20}, {"0": 30})
    assert "topic a: nothing is read from it for now: too few brokers answer" in caplog.text
    cluster.clear_faults()
    wait_until(lambda: next_end(reader, end)["a"] == {"0": 5})
    reader.stop()


def test_deleted_topic_delays_no_other_topic_while_one_broker_lags_behind(cluster_of_two: FakeKafka) -> None:
    """That broker names a leader, which does not know the topic any more."""
    cluster = cluster_of_two
    options = {**QUICK, "kafka.group.protocol": "none", "failOnDataLoss": "false"}
    reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **options)
    read = next_end(reader, reader.initialOffset())
    cluster.isolate(2)
    cluster.delete_topic("a")
    cluster.write("b", 0, records(20, 10))
    end = next_end(reader, read)
    assert (end["a"], end["b"]) == ({"0": 20}, {"0": 30})
    assert reader.query.logs is not None
    assert "a" in reader.query.logs.assignment.awaited
    cluster.isolate(2, False)
    wait_until(lambda: "a" not in next_end(reader, end))
    reader.stop()


def test_deleted_topics_are_asked_about_together(cluster_of_two: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they took 2 s each, so that 30 topics stopped the query."""
    cluster = cluster_of_two
    options = {**QUICK, "kafka.group.protocol": "none", "commitOffsets": "false"}
    cluster.create_topic("c")
    reader = reader_of(cluster.bootstrap_servers, "a,b,c", "g", **options)
    read = next_end(reader, reader.initialOffset())
    cluster.isolate(2)
    for topic in ("a", "b"):
        cluster.delete_topic(topic)
    ask, asked = Client.ids_at_brokers, list[set[str]]()

    def ids_at_brokers(client: Client, topics: set[str], deadline: Deadline) -> dict[str, set[bytes]]:
        asked.append(topics)
        return ask(client, topics, deadline)

    monkeypatch.setattr(Client, "ids_at_brokers", ids_at_brokers)
    assert next_end(reader, read) == read
    assert asked[0] == {"a", "b"}
    reader.stop()


def test_topic_stays_awaited_if_the_next_reply_names_the_one_that_was_read(
    cluster_of_two: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first reply comes from a broker with the new topic; the log has records after the position."""
    cluster, find = cluster_of_two, discovery.partitions_of_running_query
    reader = reader_of(cluster.bootstrap_servers, "a", "g", **{**QUICK, "kafka.group.protocol": "none"})
    read = next_end(reader, reader.initialOffset())
    topic_id = cluster.controller.topic("a").topic_id
    cluster.write("a", 0, records(20, 10))
    monkeypatch.setattr(
        Client, "ids_at_brokers", lambda self, topics, _: {name: {topic_id, b"x" * 16} for name in topics}
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            trigger, "partitions_of_running_query", lambda *arguments: dict.fromkeys(find(*arguments), b"x" * 16)
        )
        assert next_end(reader, read) == read
    assert next_end(reader, read) == read
    reader.stop()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_partition_that_seemed_deleted_comes_back_at_the_group_offset(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    options = KIP_848_OPTIONS if protocol == "consumer" else {**EAGER_OPTIONS, **QUICK}
    find = discovery.partitions_of_running_query
    with Cluster(90) as cluster:
        cluster.create("b", 20)
        reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **{**options, "failOnDataLoss": "false"})
        read = next_end(reader, reader.initialOffset())
        assert next_end(reader, read) == read
        wait_until(lambda: cluster.committed_offsets("g") == {("a", 0): 90, ("b", 0): 20})
        monkeypatch.setattr(
            trigger,
            "partitions_of_running_query",
            lambda *arguments: {key: topic_id for key, topic_id in find(*arguments).items() if key[0] != "a"},
        )
        without = next_end(reader, read)
        assert "a" not in without
        monkeypatch.undo()
        end = next_end(reader, without)
        assert (end["a"], ranges(reader, without, end)) == ({"0": 90}, [])
        reader.stop()


def test_start_of_a_member_outlives_a_stale_reply_in_the_first_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another topic makes the first batch, after which `startingOffsets` are not resolved again."""
    find = discovery.partitions_of_running_query
    start = {"kafka.auto.offset.reset": None, "startingOffsets": '{"a": {"0": 15}, "b": {"0": 15}}'}
    with Cluster(20) as cluster:
        cluster.create("b", 20)
        reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **{**KIP_848_OPTIONS, **start})
        monkeypatch.setattr(
            trigger,
            "partitions_of_running_query",
            lambda *arguments: {key: b"x" * 16 if key[0] == "a" else at for key, at in find(*arguments).items()},
        )
        ends = [reader.initialOffset()]

        def has_first_batch() -> bool:
            ends.append(next_end(reader, ends[-1]))
            return "b" in ends[-1]

        wait_until(has_first_batch)
        assert "a" not in ends[-1]
        monkeypatch.undo()
        assert ranges(reader, ends[-1], next_end(reader, ends[-1])) == [(0, 15, 20)]
        reader.stop()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_start_of_a_member_outlives_a_batch_that_awaits_its_topic(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """The batch of another topic ended at the start, so that it read, or a replay resolved, what is before it."""
    options = KIP_848_OPTIONS if protocol == "consumer" else {**EAGER_OPTIONS, **QUICK}
    with Cluster(20) as cluster, client_of(cluster.bootstrap_servers) as client:
        for topic in ("b", "c"):
            cluster.create(topic, 20)
        ids = {topic: topic_id_text(cluster.controller.topic(topic).topic_id) for topic in "abc"}
        begin = {"a": {"0": 10}, "b": {"0": 10}, "@ids": {topic: ids[topic] for topic in "ab"}}
        group_offsets = {("a", 0): CommittedOffset(18), ("b", 0): CommittedOffset(10), ("c", 0): CommittedOffset(18)}
        commit_offsets(client, "g", group_offsets, client.deadline())
        reader = reader_of(cluster.bootstrap_servers, "a,b,c", "g", **options)
        find = start_offsets.log_end_offsets

        def truncate_first(*arguments: Any) -> dict[tuple[str, int], ListedOffset]:
            for topic in ("a", "c"):
                cluster.truncate_log(topic, 0, 16)
            return find(*arguments)

        monkeypatch.setattr(trigger, "log_end_offsets", truncate_first)
        monkeypatch.setattr(Client, "ids_at_brokers", lambda self, topics, _: {topic: set() for topic in topics})
        end = next_end(reader, begin)
        assert (end["a"], end["b"], end.get("c")) == ({"0": 10}, {"0": 20}, None)
        assert ranges(reader, begin, end) == [(0, 10, 20)]
        assert next_end(reader, end) == end
        monkeypatch.undo()
        ends = [end]

        def has_truncated_logs() -> bool:
            ends.append(next_end(reader, end))
            return "c" in ends[-1]

        wait_until(has_truncated_logs)
        assert (ends[-1]["a"], ends[-1]["c"]) == ({"0": 16}, {"0": 16})
        assert ranges(reader, end, ends[-1]) == []
        reader.stop()
