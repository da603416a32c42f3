"""Write numbered records in the background while a test changes something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from spark_kafka_source.local_kafka import LocalKafka


class NumberSource:
    """Writes numbers to a topic with librdkafka, until it is closed.

    Parameters
    ----------
    kafka : LocalKafka
    topic : str
    record : callable
        Returns the arguments of `Producer.produce` for a number: `value`, and `key` or `partition`.
    at_once : int
        Number of records of each round.
    every_s : float
        Time between two rounds.

    Attributes
    ----------
    count : int
        Records so far.
    """

    def __init__(
        self,
        kafka: LocalKafka,
        topic: str,
        record: Callable[[int], dict[str, Any]],
        at_once: int,
        every_s: float = 0.01,
    ) -> None:
        self.count = 0
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "log_level": 0})
        self._topic = topic
        self._record = record
        self._at_once = at_once
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            for _ in range(self._at_once):
                self._producer.produce(self._topic, **self._record(self.count))
                self.count += 1
            self._producer.poll(0)

    def close(self) -> int:
        """Return the number of records written."""
        self._closing.set()
        self._thread.join()
        assert self._producer.flush(120) == 0
        return self.count
