"""An assigned consumer and `protocol.read` whose logs lose old records: each record once, in order, or a told loss."""

from __future__ import annotations

import time
from collections import defaultdict

import protocol
from protocol import DataLoss, KafkaConsumer, KafkaError, Producer
from protocol.testing import FakeKafka
from protocol.testing.simulation import Simulation, cluster_faults, heal, network_faults

PARTITIONS = 4
DURATION_S = 10.0
KINDS = ("Fetch", "ListOffsets", "Metadata", "OffsetForLeaderEpoch", "ApiVersions")
Records = list[tuple[int, bytes]]
"""Offsets and values."""


class Reading:
    """The consumer's records and reported losses, judged when they arrive."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = defaultdict(int)
        self.told = 0
        self.failures: list[str] = []
        self.log_starts: dict[int, int] = defaultdict(int)
        self._lost_at: dict[int, int] = {}

    def received(self, partition: int, records: Records) -> None:
        """Judge records: they continue at the position, except after a reported loss."""
        for offset, value in records:
            position = self.positions[partition]
            lost = self._lost_at.pop(partition, None) == position and position < offset <= self.log_starts[partition]
            if offset != position and not lost:
                self.failures.append(f"t-{partition}: offset {offset} after position {position}")
            if value != b"%d:%d" % (partition, offset):
                self.failures.append(f"t-{partition}:{offset} has the value {value!r}")
            self.positions[partition] = offset + 1

    def lost(self, partition: int, offset: int) -> None:
        """Judge a reported loss: it names the position, which was deleted."""
        self.told += 1
        if offset != self.positions[partition] or offset >= self.log_starts[partition]:
            self.failures.append(
                f"a loss of t-{partition} at {offset}, position {self.positions[partition]}, log start "
                f"{self.log_starts[partition]}"
            )
        self._lost_at[partition] = offset


def scenario(world: Simulation) -> dict[str, object]:
    """Delete old records under a consumer; without losses, `protocol.read` reads the growing topic again and again."""
    kafka = FakeKafka(3, record_requests=False)
    kafka.create_topic("t", PARTITIONS, 3)
    has_losses = world.random.random() < 0.7
    reading = Reading()
    tables: list[dict[int, Records]] = []

    def delete() -> None:
        partition = world.fault_random.randrange(PARTITIONS)
        log = kafka.log("t", partition)
        start = max(log.start_offset, log.end_offset - world.fault_random.randrange(20))
        reading.log_starts[partition] = start
        kafka.shrink_log("t", partition, start)

    def delete_unread() -> None:
        consumer.pause(3.0)
        world.later(world.fault_random.uniform(1.0, 2.5), delete)

    producer = world.start(produce, kafka.bootstrap_servers, name="producer")
    consumer = world.start(consume, kafka.bootstrap_servers, reading, name="consumer")
    clients = [consumer]
    schedule = [
        *cluster_faults(world, kafka, KINDS),
        *network_faults(world, kafka, lambda: [process for process in clients if process.alive]),
        ("pause the consumer", lambda: consumer.pause(world.fault_random.uniform(0.05, 8))),
        ("the consumer's clock jumps", lambda: consumer.jump_monotonic(world.fault_random.uniform(0.1, 20))),
    ]
    if has_losses:
        schedule += [("delete records", delete), ("delete records under a paused consumer", delete_unread)] * 6
    else:
        clients.append(world.start(read_tables, kafka.bootstrap_servers, tables, name="reader"))
    faults = world.start_faults(schedule)
    producer.join(DURATION_S + 200)
    faults.stop()
    heal(world, kafka)
    world.sleep(13)  # what begins for a while has ended
    ends = {partition: kafka.log("t", partition).end_offset for partition in range(PARTITIONS)}
    world.wait_until(
        lambda: reading.failures or dict(reading.positions) == ends or everything_deleted(kafka, reading),
        180,
        f"the consumer is at the ends of the logs {ends}",
    )
    for process in clients:
        process.kill()
    assert not reading.failures, reading.failures[:3]
    for table in tables:
        for partition, records in table.items():
            expected = [(offset, b"%d:%d" % (partition, offset)) for offset in range(len(records))]
            assert records == expected, f"read of t-{partition}: {records}"
    return {"records": sum(ends.values()), "losses": has_losses, "told": reading.told, "tables": len(tables)}


def everything_deleted(kafka: FakeKafka, reading: Reading) -> bool:
    """Return True if the consumer has all records that the logs still have."""
    logs = {partition: kafka.log("t", partition) for partition in range(PARTITIONS)}
    return all(reading.positions[number] == log.end_offset or not log.batches for number, log in logs.items())


def produce(servers: str) -> None:
    """Produce records whose values are their partitions and offsets."""
    end_s = time.monotonic() + DURATION_S
    offset = 0
    with Producer({"bootstrap.servers": servers}) as producer:
        while time.monotonic() < end_s:
            for _ in range(3):
                for partition in range(PARTITIONS):
                    producer.send("t", b"%d:%d" % (partition, offset), partition=partition)
                offset += 1
            producer.flush()
            time.sleep(0.1)


def consume(servers: str, reading: Reading) -> None:
    """Read all partitions, and continue at the log start after a loss."""
    consumer = KafkaConsumer({"bootstrap.servers": servers, "auto.offset.reset": "none"})
    partitions = [("t", partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    for topic, partition in partitions:
        consumer.seek((topic, partition), 0)
    while True:
        try:
            for (_, partition), batches in consumer.poll(300).items():
                for batch in batches:
                    offsets, values = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
                    reading.received(partition, list(zip(offsets, values, strict=True)))
        except DataLoss as loss:
            partition = loss.context["partition"]
            reading.lost(partition, loss.context["offset"])
            consumer.seek_to_beginning([("t", partition)])
        except KafkaError:
            continue


def read_tables(servers: str, tables: list[dict[int, Records]]) -> None:
    """Read the topic again and again, as it is at that time."""
    while True:
        records: dict[int, Records] = defaultdict(list)
        try:
            for batch in protocol.read({"bootstrap.servers": servers}, "t"):
                columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
                for partition, offset, value in zip(*columns, strict=True):
                    records[partition].append((offset, value))
        except KafkaError:
            continue
        tables.append(records)
        time.sleep(0.5)
