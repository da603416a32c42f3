"""One broker of the model, a topic of twenty offsets whose logs tests change; a reader's plans, and its commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol import CommittedOffset
from protocol.base.clock import Deadline
from protocol.cluster.metadata import topic_id_text
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import EARLIEST, NO_TOPIC_ID
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.record_batches import TRANSACTIONAL, Batch, Record, write_batch
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.offsets import JsonDict
from tests.protocol.fetch.consuming import records

OLD_ID, NEW_ID, ID_OF_B = b"o" * 16, b"n" * 16, b"b" * 16


class Cluster(FakeKafka):
    """One broker that leads, in epoch 5, topic `a` with two partitions of twenty offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.add("a", (0, 20), (0, 20))

    def add(self, topic: str, *logs: tuple[int, int], topic_id: bytes = OLD_ID) -> None:
        """Create a topic with logs from (log start offset, log end offset)."""
        self.create_topic(topic, len(logs), topic_id=topic_id)
        for number, (start, end) in enumerate(logs):
            self.set_log(topic, number, start, end)

    def set_log(self, topic: str, number: int, start: int, end: int, *, epoch: int = 5, stable: int = -1) -> None:
        """Set the leader's log and leader epoch. `stable`: the first offset of an open transaction."""
        if number == len(self.controller.topic(topic).partitions):
            self.create_partitions(topic, number + 1)
        self.set_leader_epoch(topic, number, epoch)
        plain = stable if stable >= 0 else end
        data = records(start, 1, last_offset=plain - 1) if start < plain else b""
        if plain < end:
            opened = {"flags": TRANSACTIONAL, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            data += write_batch(Batch([Record()], stable, last_offset_delta=end - 1 - stable, **opened))
        self.rewrite(topic, number, data, start=start)

    def recreate(self, topic: str, *logs: tuple[int, int]) -> None:
        self.delete_topic(topic)
        self.add(topic, *logs, topic_id=NEW_ID)

    def delete_if_there(self, topic: str) -> None:
        if topic in self.controller.image.topics:
            self.delete_topic(topic)

    @property
    def list_offsets_for_log_starts(self) -> list[list[tuple[str, int]]]:
        """Return the partitions of each request for log start offsets."""
        return [
            [(topic["name"], row["partition_index"]) for topic in body["topics"] for row in topic["partitions"]]
            for body in self.request_bodies("ListOffsets")
            if body["topics"][0]["partitions"][0]["timestamp"] == EARLIEST
        ]

    def reader(self, **options: object) -> KafkaStreamReader:
        return KafkaStreamReader(self.options(**options))

    def options(self, **options: object) -> SourceOptions:
        topics = ",".join(self.controller.image.topics)
        defaults = {"kafka.bootstrap.servers": self.bootstrap_servers, "subscribe": topics}
        chosen = {key: value for key, value in {**defaults, **options}.items() if value is not None}
        return parse_source_options(chosen, streaming=True)


class Marks:
    """Replaces an `OffsetManager`: records all staged offsets, including lower ones."""

    healthy, group = True, "g"

    def __init__(self) -> None:
        self.marked: list[dict[tuple[str, int], int]] = []
        self.kept: list[tuple[str, int]] = []
        self.flushes = 0

    def set_member(self, member: GroupMember) -> None: ...

    def retain(self, owned: Iterable[tuple[str, int]]) -> None:
        self.kept = list(owned)

    def stage(self, offsets: Mapping[tuple[str, int], CommittedOffset], member: GroupMember) -> None:
        assert member == NO_MEMBER
        assert all(to.topic_id != NO_TOPIC_ID for to in offsets.values())
        assert self.kept == list(offsets)
        self.marked.append({key: entry.offset for key, entry in offsets.items()})

    def flush(self, deadline: Deadline, *, partition_timeout_s: float) -> bool:
        self.flushes += 1
        return True


BOTH = [("a", 0), ("a", 1)]


def read_to(offset: int, second: int = 20, epoch: int = 5, topic_id: bytes = OLD_ID) -> JsonDict:
    """Return the end of a batch that has read a-0 and a-1 up to these offsets."""
    return {
        "a": {"0": offset, "1": second},
        "@ids": {"a": topic_id_text(topic_id)},
        "@epochs": {"a": {"0": epoch, "1": epoch}},
        "@cluster": {"id": "fake"},
    }


def next_end(reader: KafkaStreamReader, begin: JsonDict) -> JsonDict:
    """Return the end of the batch that a trigger plans after `begin`."""
    return reader.latestOffset(begin, reader.getDefaultReadLimit())


def ranges(reader: KafkaStreamReader, begin: JsonDict, end: JsonDict) -> list[tuple[int, int, int]]:
    tasks = reader.partitions(begin, end)
    return sorted(
        (source_range.partition, source_range.from_offset, source_range.until_offset)
        for task in tasks
        for source_range in task.ranges
    )


def offsets_read(reader: KafkaStreamReader, begin: JsonDict, end: JsonDict) -> list[int]:
    """Return the offsets of the records that the tasks of a batch read from a-0."""
    batches = (batch for task in reader.partitions(begin, end) for batch in reader.read(task))
    rows = [row for batch in batches for row in batch.to_pylist() if row["partition"] == 0]
    return [row["offset"] for row in rows]
