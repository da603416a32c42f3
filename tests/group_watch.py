"""A group's offsets, as they are seen from outside while a query runs."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from spark_kafka_source.local_kafka import LocalKafka


class GroupWatch:
    """Asks the group's offsets all the time, and holds them against what the checkpoint says is complete."""

    def __init__(self, kafka: LocalKafka, topic: str, partitions: int, group: str, checkpoint: Path) -> None:
        # It only asks: without subscribing it is no member of the group.
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._topic = topic
        self._checkpoint = checkpoint
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.looks = 0
        self.moved = 0
        self.wrong: list[str] = []
        self._thread.start()

    def close(self) -> None:
        """After one more look, at what the query has left."""
        begun = self.looks + 1
        while self.looks <= begun and self._thread.is_alive():
            time.sleep(0.02)
        self._ended.set()
        self._thread.join(60)
        self._consumer.close()

    def _watch(self) -> None:
        before: dict[int, int] = {}
        while not self._ended.wait(0.02):
            # In this order: the checkpoint only goes forward, so one read later can only excuse, never accuse.
            try:
                committed = self._committed()
            except KafkaException:  # a coordinator that is just loading
                continue
            complete = self._complete()
            self.looks += 1
            self.moved += committed != before
            for partition, offset in committed.items():
                if offset > complete.get(partition, 0):
                    self.wrong.append(f"partition {partition}: group {offset}, checkpoint {complete}")
                if offset < before.get(partition, 0):
                    self.wrong.append(f"partition {partition}: went back from {before[partition]} to {offset}")
            before = committed

    def _committed(self) -> dict[int, int]:
        rows = self._consumer.committed(self._partitions, timeout=30)
        return {row.partition: row.offset for row in rows if row.offset >= 0}

    def _complete(self) -> dict[int, int]:
        commits = [int(path.name) for path in (self._checkpoint / "commits").glob("*") if path.name.isdigit()]
        if not commits:
            return {}
        log = (self._checkpoint / "offsets" / str(max(commits))).read_text().splitlines()
        return {int(partition): offset for partition, offset in json.loads(log[-1]).get(self._topic, {}).items()}
