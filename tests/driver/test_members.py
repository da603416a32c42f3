"""A query as a member of its group, without Spark: what a trigger makes of what the group and its topics do."""

from __future__ import annotations

import pytest

from protocol.cluster import unknown_topic
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from tests.fake_kafka.server import FakeKafka
from tests.protocol.consumer.consuming import records
from tests.protocol.consumer_group.members import wait_until


def reader_of(bootstrap_servers: str, topic: str, group: str, **options: str) -> KafkaStreamReader:
    given = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    given |= {"kafka.group.protocol": "classic", "kafka.auto.offset.reset": "earliest"}
    return KafkaStreamReader(parse_source_options({**given, **options}, streaming=True))


# -- topics that are deleted and recreated --------------------------------------------------------

QUICK = {"kafka.metadata.max.age.ms": "100", "kafka.heartbeat.interval.ms": "50", "failOnDataLoss": "false"}
LATEST = {"kafka.auto.offset.reset": "latest"}


class Cluster(FakeKafka):
    """One broker, and topic `a` with one partition."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.create("a", end)

    def create(self, topic: str, end: int) -> None:
        self.create_topic(topic, 1)
        self.rewrite(topic, 0, records(0, 1, last_offset=end - 1))

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        return {key: entry.offset for key, entry in self.offsets.committed.get(group, {}).items()}


def wait_for_rebalance(reader: KafkaStreamReader) -> None:
    assert reader._query.membership is not None
    member = reader._query.membership._membership
    assert member is not None
    wait_until(lambda: member.rebalance_pending is not None)


@pytest.mark.parametrize("recreated_after", ["a trigger", "the rebalance"])
def test_a_topic_that_is_recreated_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, recreated_after: str
) -> None:
    """Neither where the query began nor what it has read of the old one says anything of the new one."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 100)
    with Cluster(20) as cluster:
        cluster.create("b", 3)
        reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **LATEST, **QUICK)
        limit = reader.getDefaultReadLimit()
        end = reader.latestOffset(reader.initialOffset(), limit)
        assert (end["a"], end["b"]) == ({"0": 20}, {"0": 3})
        end = reader.latestOffset(end, limit)
        assert cluster.committed("g") == {("a", 0): 20, ("b", 0): 3}
        cluster.rewrite("a", 0, records(0, 1, last_offset=24))
        end = reader.latestOffset(end, limit)
        assert end["a"] == {"0": 25}
        cluster.delete_topic("a")
        wait_for_rebalance(reader)
        if recreated_after == "a trigger":
            end = reader.latestOffset(end, limit)
            assert "a" not in end
        cluster.create("a", 30)
        committed = []
        cluster.before[JOIN_GROUP] = lambda body: committed.append(cluster.committed("g").get(("a", 0)))
        begin = end

        def planned() -> bool:
            nonlocal end
            end = reader.latestOffset(begin, limit)
            return "a" in end and end["a"] == {"0": 30}

        wait_until(planned)
        (task,) = reader.partitions(begin, end)
        assert [(each.topic, each.from_offset, each.until_offset) for each in task.ranges] == [("a", 0, 30)]
        assert set(committed) <= {None, 0}, "what was read of the old one is not committed for the new one"
        reader.stop()
