"""A processor in a separate process, which logs what its handler does; SIGTERM closes it.

Arguments: bootstrap servers, topic, group, dead letter topic, log file, properties and options as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Collection

from protocol.consumer.commits import Offsets, OnCommit
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import CommitFailed
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.group.commits.committed_offsets import CallerOffsets, as_committed_offsets
from protocol.kafka_terms import TopicPartition
from protocol.processing.failures import RetryPolicy
from protocol.processing.processor import Processor

POISON_EVERY, ATTEMPTS = 97, 9
READY = "ready\n"


def is_poison(value: bytes | None) -> bool:
    return int(value or b"0") % POISON_EVERY == 0


class Logged(ConsumerRebalanceListener):
    """A slow handler that fails at random, and always for poison records.

    First "ready", then one line per event, in one write: time in ns, "assigned", "begin", "end", "fail" or
    "committed" (acknowledged by the coordinator), partition, offset, key.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def __call__(self, message: ConsumerMessage) -> None:
        self._note("begin", message)
        time.sleep(random.random() * 0.01)
        if is_poison(message.value) or random.random() < 0.05:
            self._note("fail", message)
            raise ValueError("chaos")
        self._note("end", message)

    def _note(self, label: str, message: ConsumerMessage) -> None:
        self._event(label, message.partition, message.offset, (message.key or b"").decode())

    def _event(self, label: str, partition: int, offset: int = -1, key: str = "") -> None:
        self.write(f"{time.monotonic_ns()} {label} {partition} {offset} {key}\n")

    def write(self, line: str) -> None:
        os.write(self._file, line.encode())

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        for _, partition in partitions:
            self._event("assigned", partition)

    def committed(self, offsets: Offsets) -> None:
        for (_, partition), to in offsets.items():
            self._event("committed", partition, to.offset)


class CommitsLogged(KafkaConsumer):
    """Logs commits once they are acknowledged."""

    def __init__(self, logged: Logged, properties: dict[str, object]) -> None:
        super().__init__(properties, enable_auto_commit=False)
        self._logged = logged

    def commit_sync(self, offsets: CallerOffsets | None = None, timeout_ms: float | None = None) -> None:
        super().commit_sync(offsets, timeout_ms)
        self._logged.committed(as_committed_offsets(offsets or {}))

    def commit_async(self, offsets: CallerOffsets | None = None, callback: OnCommit | None = None) -> None:
        def called(inputs: Offsets, error: CommitFailed | None) -> None:
            if error is None:
                self._logged.committed(inputs)
            if callback is not None:
                callback(inputs, error)

        super().commit_async(offsets, called)


def main(servers: str, topic: str, group: str, dead: str, path: str, options: str) -> None:
    given = json.loads(options)
    logged = Logged(path)
    properties = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = CommitsLogged(logged, properties | given.pop("properties"))
    processor = Processor(
        consumer,
        logged,
        [topic],
        listener=logged,
        retry=RetryPolicy(retries=ATTEMPTS - 1, backoff_ms=2, backoff_max_ms=20),
        dead_letter_topic=dead,
        **given,
    )
    signal.signal(signal.SIGTERM, lambda *_: processor.close())
    logged.write(READY)
    with consumer, processor:
        processor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
