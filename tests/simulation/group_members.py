"""Members of a group that come, go, are killed and paused: no record is lost."""

from __future__ import annotations

import time
from collections import defaultdict

from protocol import KafkaConsumer, KafkaError, Producer
from protocol.testing import FakeKafka
from protocol.testing.simulation import Simulation, cluster_faults, heal, network_faults, process_faults

PARTITIONS = 6
DURATION_S = 15.0
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky", None)
KINDS = ("JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "OffsetCommit", "OffsetFetch", "Fetch")


def scenario(world: Simulation) -> dict[str, object]:
    settings = {"group.consumer.heartbeat.interval.ms": "500", "group.consumer.session.timeout.ms": "6000"}
    kafka = FakeKafka(3, record_requests=False, settings=settings)
    kafka.create_topic("t", PARTITIONS, 3)
    assignor = world.random.choice(ASSIGNORS)
    seen: dict[int, set[int]] = defaultdict(set)
    acknowledged: dict[int, int] = {}
    stop: list[bool] = []

    def start(*_: object) -> None:
        if not stop:
            world.start(member, kafka.bootstrap_servers, assignor, seen, stop, name=f"member-{len(world.processes)}")

    for _ in range(3):
        start()
    producer = world.start(produce, kafka.bootstrap_servers, acknowledged, name="producer")
    faults = world.start_faults(
        [
            *cluster_faults(world, kafka, KINDS),
            *network_faults(world, kafka, lambda: world.alive("member")),
            *process_faults(world, lambda: world.alive("member"), start),
        ]
    )
    producer.join(DURATION_S + 200)
    faults.stop()
    heal(world, kafka)
    world.sleep(20)  # what begins for a while has ended
    log = {
        partition: [int(message.value) for message in kafka.records("t", partition)] for partition in range(PARTITIONS)
    }

    def complete() -> bool:
        return all(set(log[partition]) <= seen[partition] for partition in log)

    world.wait_until(complete, 180, "members have consumed all records")
    stop.append(True)
    for process in world.alive("member"):
        process.join(120)
    committed = kafka.committed_offsets("g")
    assert all(committed.get(("t", partition), 0) <= len(log[partition]) for partition in log)
    return {"records": sum(map(len, log.values())), "assignor": assignor, "members": len(world.processes) - 1}


def produce(servers: str, acknowledged: dict[int, int]) -> None:
    end_s = time.monotonic() + DURATION_S
    number = 0
    with Producer({"bootstrap.servers": servers}) as producer:
        while time.monotonic() < end_s:
            for _ in range(10):
                producer.send("t", b"%d" % number, partition=number % PARTITIONS)
                number += 1
            producer.flush()
            acknowledged[0] = number
            time.sleep(0.1)


def member(servers: str, assignor: str | None, seen: dict[int, set[int]], stop: list[bool]) -> None:
    options = {
        "bootstrap.servers": servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if assignor is None:
        options["group.protocol"] = "consumer"
    else:
        options |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "partition.assignment.strategy": assignor}
    with KafkaConsumer(options) as consumer:
        consumer.subscribe(["t"])
        while not stop:
            try:
                polled = consumer.poll(200)
                for (_, partition), batches in polled.items():
                    for batch in batches:
                        seen[partition].update(int(value) for value in batch.column("value").to_pylist())
                if polled:
                    consumer.commit_sync()
            except KafkaError:
                continue
