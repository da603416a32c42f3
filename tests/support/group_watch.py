"""Watch the committed offsets of a group while a query runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_until import comes_true


class GroupWatch:
    """Fetches the group's offsets repeatedly, and compares them with the completed batches of the checkpoint."""

    def __init__(self, kafka: LocalKafka, topic: str, partitions: int, group: str, checkpoint: Path) -> None:
        # The consumer does not subscribe, so it is not a group member.
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
        """Compare once more, after the query has ended, then close."""
        begun = self.looks + 1
        comes_true(lambda: self.looks > begun or not self._thread.is_alive(), 60)
        self._ended.set()
        self._thread.join(60)
        self._consumer.close()

    def _watch(self) -> None:
        before: dict[int, int] = {}
        while not self._ended.wait(0.02):
            # Offsets first: the checkpoint only advances, so reading it later cannot cause a false failure.
            try:
                committed = self._committed()
            except KafkaException:  # the coordinator is loading
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
