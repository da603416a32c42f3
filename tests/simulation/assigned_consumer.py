"""An assigned consumer, `protocol.read` and ranges like those of Spark read logs that lose their beginnings and ends.

Each record comes once, whole, in order, or an error names exactly the offsets that are lost. The scenario writes the
records, and only while all replicas follow: then clean elections lose nothing, and the model knows all records.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

import protocol
from protocol import Client, CommittedOffset, DataLoss, KafkaConsumer, KafkaError
from protocol.config import parse_consumer
from protocol.errors import LogTruncated
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.testing import FakeKafka
from protocol.testing.simulation import (
    KAFKA_2_8,
    Simulation,
    all_in_cluster,
    bootstrap_servers,
    cluster_faults,
    log_faults,
    network_faults,
    process_faults,
    settle,
)
from tests.simulation.fair_shares import judge_shares
from tests.simulation.whole_records import any_fields, text_of, texts_of

PARTITIONS = 3
KEYS = 5
DURATION_S = 12.0
KINDS = ("ApiVersions", "Fetch", "ListOffsets", "Metadata", "OffsetForLeaderEpoch")
FETCH_ERRORS = ("OFFSET_OUT_OF_RANGE", "UNKNOWN_SERVER_ERROR", "UNSUPPORTED_COMPRESSION_TYPE")
LIMITS = ("fetch.max.bytes", "max.partition.fetch.bytes")
END = 1_000_000
DELETED, TRUNCATED, COMPACTED = "deleted", "truncated", "compacted"
Record = tuple[int, str]
"""Offset and text of all other fields; each text is written once."""


@dataclass
class Log:
    """The records of a partition.

    Attributes
    ----------
    alive : dict of int to str
        Records by offset.
    written_s : dict of Record to float
        All records that the log has ever had, and their times.
    ends : dict of Record to (str, float)
        How and when records left the log.
    start : int
        Log start offset.
    shortened_s : float
        Time of the last truncation or deletion, also of offsets whose records compaction had removed before.
    """

    alive: dict[int, str] = field(default_factory=dict)
    written_s: dict[Record, float] = field(default_factory=dict)
    ends: dict[Record, tuple[str, float]] = field(default_factory=dict)
    start: int = 0
    shortened_s: float = -1.0

    def remove(self, offsets: Iterable[int], cause: str, now_s: float) -> None:
        """Remove records."""
        for offset in list(offsets):
            self.ends[offset, self.alive.pop(offset)] = cause, now_s

    def was_alive(self, record: Record, from_s: float, until_s: float) -> bool:
        """Return True if the log had a record in the whole period."""
        _, end_s = self.ends.get(record, ("", float("inf")))
        return self.written_s[record] <= from_s and until_s < end_s


class Model:
    """The logs of the topic, and all that was read from them."""

    def __init__(self, world: Simulation, kafka: FakeKafka) -> None:
        self.failures: list[str] = []
        self.told = self.tables = self.ranges = 0
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.delivered: list[dict[int, str]] = [{} for _ in range(PARTITIONS)]
        self._positions = [0] * PARTITIONS
        self._world = world
        self._kafka = kafka
        self._count = 0

    # -- the cluster --------------------------------------------------------------------------

    def write(self) -> None:
        """Append a record batch to a partition, while all replicas follow."""
        kafka, chance = self._kafka, self._world.random
        number = chance.randrange(PARTITIONS)
        with kafka.changed:
            if not all_in_cluster(kafka):
                return
            if kafka.controller.image.topics["t"].partitions[number].leader not in kafka.controller.image.brokers:
                return
            values = [b"%d:%d" % (number, self._count + index) for index in range(chance.randint(1, 4))]
            self._count += len(values)
            fields = any_fields(chance, kafka, chance.randrange(KEYS))
            offsets = kafka.produce("t", *values, partition=number, **fields)
            log, texts = self.logs[number], [text_of(value, **fields) for value in values]
            for record in zip(offsets, texts, strict=True):
                log.alive[record[0]] = record[1]
                log.written_s[record] = self._world.now_s

    def delete(self, partition: int, former_start: int, start: int) -> None:
        """Retention deletes the beginning of a log."""
        log = self.logs[partition]
        log.start, log.shortened_s = start, self._world.now_s
        log.remove([offset for offset in log.alive if offset < start], DELETED, self._world.now_s)

    def truncate(self, partition: int, end: int, log_end: int) -> None:
        """An unclean election loses the end of a log."""
        log = self.logs[partition]
        log.shortened_s = self._world.now_s
        log.remove([offset for offset in log.alive if offset >= end], TRUNCATED, self._world.now_s)

    def compact(self) -> None:
        """A compaction has removed records of all partitions."""
        for number, log in enumerate(self.logs):
            offsets = {message.offset for message in self._kafka.records("t", number)}
            log.remove(log.alive.keys() - offsets, COMPACTED, self._world.now_s)

    # -- the consumer -------------------------------------------------------------------------

    def received(self, partition: int, records: list[Record]) -> None:
        """Judge records of a poll."""
        log, delivered = self.logs[partition], self.delivered[partition]
        for record in records:
            offset, value = record
            where = f"t-{partition}:{offset}"
            if record not in log.written_s:
                self.fail(f"{where} was never {value}")
            if delivered.get(offset) == value:
                self.fail(f"{where} comes twice")
            if offset < self._positions[partition]:
                self._go_back(partition, offset)
            if log.alive.get(offset) == value:
                skipped = [
                    former for former in log.alive if former < offset and delivered.get(former) != log.alive[former]
                ]
                if skipped:
                    self.fail(f"{where} comes before {skipped}")
            delivered[offset] = value
            self._positions[partition] = offset + 1

    def deleted(self, partition: int, offset: int, log_start: int) -> None:
        """Judge a reported loss of deleted records: from the position to a log start offset, the new position."""
        self.told += 1
        if offset != self._positions[partition] or not offset < log_start <= self.logs[partition].start:
            self.fail(
                f"t-{partition} is lost from {offset} to {log_start}, but the position is "
                f"{self._positions[partition]}, and the log start is {self.logs[partition].start}"
            )
        self._positions[partition] = log_start

    def truncated(self, partition: int, offset: int, end: int) -> None:
        """Judge a reported truncation: the offset from which on all delivered records were lost, and no other."""
        self.told += 1
        if offset != self._positions[partition]:
            self.fail(f"t-{partition} was truncated below {offset}, but the position is {self._positions[partition]}")
        log = self.logs[partition]
        lost = sorted(
            (log.ends[record][1], record[0])
            for record in self.delivered[partition].items()
            if log.ends.get(record, ("", 0))[0] == TRUNCATED
        )
        # A log that is truncated again may end earlier than the leader has said.
        firsts = {min(first for _, first in lost[: index + 1]) for index in range(len(lost))}
        last_kept = max((kept for kept in self.delivered[partition] if kept < end), default=-1)
        if not any(last_kept < first and end <= first for first in firsts):
            self.fail(
                f"an error says that t-{partition} was truncated at {end}, but of the records read {lost} are lost"
            )
        self._go_back(partition, end)

    def _go_back(self, partition: int, offset: int) -> None:
        log, delivered = self.logs[partition], self.delivered[partition]
        again = [former for former in delivered if former >= offset]
        if existing := [former for former in again if log.alive.get(former) == delivered[former]]:
            self.fail(f"t-{partition} goes back to {offset}, although the log still has {existing}")
        for former in again:
            del delivered[former]
        self._positions[partition] = offset

    # -- ranges -------------------------------------------------------------------------------

    def epoch_before(self, partition: int, offset: int) -> int:
        """Return the leader epoch of the last record before an offset, in most cases, otherwise -1."""
        with self._kafka.changed:
            leader = self._kafka.controller.image.topics["t"].partitions[partition].leader
            if leader < 0 or self._world.random.random() < 0.3:
                return -1
            return self._kafka.log("t", partition).epoch_at(offset - 1)

    def judge_range(
        self,
        partition: int,
        bounds: tuple[int, int],
        records: list[Record],
        told: set[int],
        times_s: tuple[float, float],
    ) -> None:
        """Judge a range of offsets that was planned within a period and has been read.

        Parameters
        ----------
        partition : int
        bounds : (int, int)
        records : list of Record
            In the order in which they came.
        told : set of int
            Offsets that the reader names as lost.
        times_s : (float, float)
            Start and end of planning. The range must have the records that existed during all of it, and may have
            those that were written during it.
        """
        log, now_s = self.logs[partition], self._world.now_s
        where = f"the range {bounds} of t-{partition}, planned at {times_s[1]:.3f},"
        within = [record for record in log.written_s if bounds[0] <= record[0] < bounds[1]]
        planned = {record for record in within if log.was_alive(record, *times_s)}
        possible = {record for record in within if log.written_s[record] <= times_s[1]}
        if records != sorted(set(records)) or set(records) - possible:
            self.fail(f"{where} has {records}, planned were {sorted(planned)}")
        for record in sorted(planned - set(records)):
            cause, _ = log.ends.get(record, ("in the log", 0))
            if cause != COMPACTED and record[0] not in told:
                self.fail(f"{where} is read without {record} ({cause}), silently")
        if wrong := [record for record in planned if record[0] in told and log.was_alive(record, times_s[0], now_s)]:
            self.fail(f"{where} has {sorted(wrong)}, which are named as lost, and still exist")

    def judge_loss(self, partition: int, from_s: float, text: str) -> None:
        """Judge a loss that ends a read: the partition has lost records since a time."""
        if self.logs[partition].shortened_s < from_s:
            self.fail(f"t-{partition} has lost nothing since {from_s:.3f}, but an error says: {text}")

    def fail(self, text: str) -> None:
        """Take note of a broken rule."""
        self._world.trace(f"broken rule: {text}")
        self.failures.append(text)

    def complete(self) -> bool:
        """Return True if the consumer has all records of the logs."""
        return all(
            delivered.get(offset) == value
            for log, delivered in zip(self.logs, self.delivered, strict=True)
            for offset, value in log.alive.items()
        )

    def now_s(self) -> float:
        """Return the time of the world."""
        return self._world.now_s


def scenario(world: Simulation) -> dict[str, object]:
    """Read a topic in three ways while it is written to, and loses records in most runs."""
    versions = world.random.choice([None, None, KAFKA_2_8])
    sessions = world.random.choice(["1000", "1", "0"])
    settings = {"max.incremental.fetch.session.cache.slots": sessions}
    kafka = FakeKafka(3, record_requests=False, settings=settings, newest_versions=versions)
    compacts = world.random.random() < 0.4
    kafka.create_topic("t", PARTITIONS, 3, config={"cleanup.policy": "compact"} if compacts else {})
    servers = bootstrap_servers(world, kafka)
    has_losses = world.random.random() < 0.8
    model = Model(world, kafka)
    reset = world.random.choice(["none", "none", "earliest"])
    properties = {"bootstrap.servers": servers, "metadata.max.age.ms": 2_000, "default.api.timeout.ms": 20_000}
    properties["max.partition.fetch.bytes"] = world.random.choice([1, 150, 400, 10**6])
    properties["fetch.max.bytes"] = world.random.choice([1, 300, 10**6, 10**6])
    clients = [
        world.start(consume, properties | {"auto.offset.reset": reset}, model, name="consumer"),
        world.start(read_ranges, properties, model, name="ranges"),
        world.start(read_tables, properties, model, name="tables"),
    ]
    losses = log_faults(
        world, kafka, "t", deleted=model.delete, lost=model.truncate, compacted=model.compact if compacts else None
    )
    schedule = [
        *cluster_faults(world, kafka, KINDS),
        *network_faults(world, kafka),
        *process_faults(world, lambda: clients),
        ("refuse Fetches", lambda: refuse_fetches(world, kafka, has_losses)),
        *(losses * 4 if has_losses else losses[2:] * 4),
    ]
    faults = world.start_faults(schedule, every_s=(0.1, 1.0))
    while world.now_s < DURATION_S:
        model.write()
        world.sleep(world.random.uniform(0.02, 0.2))
    faults.stop()
    settle(world, kafka)
    for _ in range(2 * PARTITIONS):
        model.write()
    world.wait_until(lambda: model.failures or model.complete(), 120, "the consumer has all records")
    for process in clients:
        assert process.alive, f"{process} has ended with {process.error!r}"
        process.kill()
    assert not model.failures, model.failures[:3]
    judge_shares(world, kafka, servers)
    chosen = {"older": versions is not None, "losses": has_losses, "compacts": compacts, "reset": reset}
    counts = {"told": model.told, "tables": model.tables, "ranges": model.ranges}
    return {**chosen, "sessions": sessions, **counts}


def refuse_fetches(world: Simulation, kafka: FakeKafka, has_losses: bool) -> None:
    """Refuse positions that exist, as a new leader does, and more; or evict the fetch sessions of all brokers.

    Not if logs lose their ends: a leader replies to the epoch of such a position, before it looks at the offset.
    """
    codes = FETCH_ERRORS[1:] if has_losses else FETCH_ERRORS
    code = world.fault_random.choice([*codes, "evicted"])
    if code != "evicted":
        kafka.refuse("Fetch", code, world.fault_random.randrange(1, 4))
        return
    for broker in kafka.brokers.values():
        broker.sessions.sessions.clear()


def consume(properties: dict[str, object], model: Model) -> None:
    """Read all partitions; after a loss continue where the log begins, or where it was truncated."""
    consumer = KafkaConsumer(properties)
    partitions = [("t", partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    for key in partitions:
        consumer.seek(key, 0)
    while True:
        try:
            for (_, partition), batches in consumer.poll(300).items():
                for batch in batches:
                    model.received(partition, rows_of(batch))
        except LogTruncated as loss:
            key, context = (loss.context["topic"], loss.context["partition"]), loss.context
            model.truncated(key[1], context["offset"], context["end_offset"])
            consumer.seek(key, CommittedOffset(context["end_offset"], context.get("end_epoch", -1)))
        except DataLoss as loss:
            key, context = (loss.context["topic"], loss.context["partition"]), loss.context
            model.deleted(key[1], context["offset"], context["log_start_offset"])
            consumer.seek(key, context["log_start_offset"])
        except KafkaError:
            continue


def rows_of(batch: pa.RecordBatch) -> list[Record]:
    """Return the records of an Arrow batch."""
    return list(zip(batch.column("offset").to_pylist(), texts_of(batch), strict=True))


def read_ranges(properties: dict[str, object], model: Model) -> None:
    """Plan ranges, and read them later, as micro-batches do, in pieces and without an end at the first loss."""
    client = Client({name: value for name, value in properties.items() if name not in LIMITS})
    config = parse_consumer({name: str(properties[name]) for name in LIMITS})
    keys = [("t", partition) for partition in range(PARTITIONS)]
    while True:
        try:
            from_s = model.now_s()
            topic_id = client.topic("t").topic_id
            starts = list_offsets(client, dict.fromkeys(keys, EARLIEST))
            ends = list_offsets(client, dict.fromkeys(keys, LATEST))
        except KafkaError:
            continue
        planned_s = model.now_s()
        ranges = [
            Range(*key, first, end, topic_id, model.epoch_before(key[1], first), ends[key].leader_epoch)
            for key in keys
            for first, end in pieces(starts[key].offset, ends[key].offset)
        ]
        time.sleep(random.choice([0.1, 1, 4]))
        records: dict[Range, list[Record]] = defaultdict(list)
        judge_loss = partial(judge_range_loss, model, from_s)
        reader = BoundedReader(client, config, ranges, on_loss=judge_loss, poll_timeout_ms=20_000)
        try:
            for planned, batch in reader:
                records[planned] += rows_of(batch)
        except KafkaError:
            continue
        told: dict[int, set[int]] = defaultdict(set)
        for lost in reader.skipped:
            told[lost.partition].update(range(lost.from_offset, lost.until_offset))
        for planned in ranges:
            bounds, partition = (planned.from_offset, planned.until_offset), planned.partition
            model.judge_range(partition, bounds, records[planned], told[partition], (from_s, planned_s))
        model.ranges += 1
        time.sleep(random.choice([0, 1]))


def judge_range_loss(model: Model, from_s: float, loss: DataLoss, lost: Range) -> None:
    """Judge a loss that a range reports."""
    model.judge_loss(lost.partition, from_s, str(loss))


def pieces(start: int, end: int) -> Iterable[tuple[int, int]]:
    """Split a range at random offsets."""
    cuts = sorted({start, end, *(random.randint(start, end) for _ in range(random.choice([0, 0, 1, 3])))})
    return itertools.pairwise(cuts)


def read_tables(properties: dict[str, object], model: Model) -> None:
    """Read the topic as it is at a time, and later than that time."""
    while True:
        records: dict[int, list[Record]] = defaultdict(list)
        from_s = model.now_s()
        try:
            reader = protocol.read(properties, "t")
            planned_s = model.now_s()
            time.sleep(random.choice([0, 0.1, 1, 4]))
            for batch in reader:
                for partition, record in zip(batch.column("partition").to_pylist(), rows_of(batch), strict=True):
                    records[partition].append(record)
        except DataLoss as loss:
            model.judge_loss(loss.context["partition"], from_s, str(loss))
            continue
        except KafkaError:
            continue
        for partition in range(PARTITIONS):
            model.judge_range(partition, (0, END), records[partition], set(), (from_s, planned_s))
        model.tables += 1
        time.sleep(random.choice([0, 1]))
