"""An idempotent producer and a consumer while connections break: each record once, in the order of sends."""

from __future__ import annotations

import time

from protocol import KafkaConsumer, KafkaError, Producer
from protocol.testing import FakeKafka
from protocol.testing.simulation import Simulation

PARTITIONS = 4
DURATION_S = 10.0


def scenario(world: Simulation) -> dict[str, int]:
    kafka = FakeKafka(3, record_requests=False)
    kafka.create_topic("t", PARTITIONS, 3)
    acknowledged: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(PARTITIONS)}
    consumed: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    producer = world.start(produce, kafka.bootstrap_servers, acknowledged, name="producer")
    consumer = world.start(consume, kafka.bootstrap_servers, consumed, name="consumer")
    faults = world.start_faults(
        [
            ("cut all connections", world.network.cut),
            ("cut the producer's connections", lambda: world.network.cut(client=producer)),
            ("lose a reply", lambda: kafka.lose_replies("Produce")),
            ("lose a request", lambda: kafka.lose_requests("Produce")),
            ("move leaders", kafka.shuffle_leaders),
        ]
    )
    producer.join(DURATION_S + 200)
    faults.stop()
    kafka.clear_faults()
    count = sum(map(len, acknowledged.values()))
    world.wait_until(lambda: sum(map(len, consumed.values())) >= count, 120, "the consumer has all records")
    consumer.kill()
    for partition in range(PARTITIONS):
        log = [int(message.value) for message in kafka.records("t", partition)]
        assert log == consumed[partition], f"consumed {consumed[partition]} of {log}"
        offsets = dict(acknowledged[partition])
        assert len(log) == len(set(log)), f"twice in t-{partition}: {log}"
        assert log == sorted(log), f"out of order in t-{partition}: {log}"
        assert all(log[offset] == number for number, offset in offsets.items())
    return {"records": count}


def produce(servers: str, acknowledged: dict[int, list[tuple[int, int]]]) -> None:
    end_s = time.monotonic() + DURATION_S
    number = 0
    with Producer({"bootstrap.servers": servers, "linger.ms": "5"}) as producer:
        while time.monotonic() < end_s:
            sent = []
            for _ in range(10):
                sent.append((number, producer.send("t", b"%d" % number, partition=number % PARTITIONS)))
                number += 1
            producer.flush()
            for value, future in sent:
                metadata = future.result()
                acknowledged[metadata.partition].append((value, metadata.offset))
            time.sleep(0.05)


def consume(servers: str, consumed: dict[int, list[int]]) -> None:
    consumer = KafkaConsumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest"})
    consumer.assign([("t", partition) for partition in range(PARTITIONS)])
    while True:
        try:
            for (_, partition), batches in consumer.poll(500).items():
                for batch in batches:
                    consumed[partition] += [int(value) for value in batch.column("value").to_pylist()]
        except KafkaError:
            continue
