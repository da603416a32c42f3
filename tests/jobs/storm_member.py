"""Group member in a separate process, for tests that stop and kill it; it runs until standard input ends.

    python -m tests.jobs.storm_member ConsumerGroup|KafkaConsumer|librdkafka BOOTSTRAP TOPIC PROPERTIES

PROPERTIES is JSON, and so is each line of output: `[PARTITION, FIRST, LAST]` for offsets that it has handled and
commits next, or `{"generation": …, "member": …, "owned": [PARTITION, …]}`. librdkafka does not print the latter.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable

import confluent_kafka

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.consumer.consumer_group import ConsumerGroup
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed
from protocol.kafka_terms import TopicPartition

_printing = threading.Lock()


def say(label: object) -> None:
    with _printing:
        print(json.dumps(label), flush=True)


def say_handled(key: TopicPartition, first: int, last: int) -> None:
    say([key[1], first, last])


def say_owned(generation: int, member: str, partitions: list[int]) -> None:
    if generation >= 0:
        say({"generation": generation, "member": member, "owned": sorted(partitions)})


class Handler:
    def setup(self, session: ConsumerGroupSession) -> None:
        pass

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        say_owned(session.generation_id, session.member_id, [claim.partition])
        for batch in claim:
            offsets = batch.column("offset")
            last = offsets[-1].as_py()
            say_handled((claim.topic, claim.partition), offsets[0].as_py(), last)
            session.mark_offset(claim.topic, claim.partition, last + 1)

    def cleanup(self, session: ConsumerGroupSession) -> None:
        pass


def handle(client: Client, topic: str, options: dict[str, str], ended: threading.Event) -> None:
    group = ConsumerGroup(client, parse_group_consumer({"auto.commit.interval.ms": "200", **options}))

    def close() -> None:
        ended.wait()
        group.close()

    closing = threading.Thread(target=close)
    closing.start()
    while not group.closed:
        group.consume([topic], Handler())
    closing.join()


def poll(client: Client, topic: str, options: dict[str, str], ended: threading.Event) -> None:
    last_reported: object = None
    with KafkaConsumer(client, parse_group_consumer({"enable.auto.commit": False, **options})) as consumer:
        consumer.subscribe([topic])
        while not ended.is_set():
            records = consumer.poll(200)
            member, owned = consumer.group_metadata().member, consumer.assignment
            if last_reported != (last_reported := (member, owned)):
                say_owned(member.generation_id_or_member_epoch, member.member_id, [number for _, number in owned])
            for key, batches in records.items():
                for batch in batches:
                    offsets = batch.column("offset")
                    say_handled(key, offsets[0].as_py(), offsets[-1].as_py())
            with contextlib.suppress(CommitFailed):  # the partition may have been revoked meanwhile
                consumer.commit_sync()


def poll_librdkafka(bootstrap: str, topic: str, options: dict[str, str], ended: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "enable.auto.commit": "false", "log_level": 0, **options}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    while not ended.is_set():
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            say_handled((topic, message.partition()), message.offset(), message.offset())
        with contextlib.suppress(confluent_kafka.KafkaException):  # as above, or nothing is new
            consumer.commit(asynchronous=False)
    consumer.close()


def main(kind: str, bootstrap: str, topic: str, properties: str) -> None:
    ended = threading.Event()

    def until_input_ends() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=until_input_ends, daemon=True).start()
    if kind == "librdkafka":
        return poll_librdkafka(bootstrap, topic, json.loads(properties), ended)
    run: Callable[[Client, str, dict[str, str], threading.Event], None] = handle if kind == "ConsumerGroup" else poll
    with Client(parse_client({"bootstrap.servers": bootstrap})) as client:
        run(client, topic, json.loads(properties), ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
