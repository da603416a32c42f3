"""The example of docs/transactions.md runs as the page describes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from protocol.errors import OutcomeUnknown, ProducerFenced
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import client_of, produce
from tests.protocol.transaction.producing import new_id, numbers_in
from tests.support.consumer_groups import describe
from tests.support.documents import block
from tests.support.wait_for_brokers import wait_until_decided
from tests.support.wait_until import wait_until

COUNT, PARTITIONS = 3_000, 3


def test_records_are_copied_once_while_copiers_join_and_leave(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    """A second copier joins and takes partitions over; a third one with the id of the first fences the first."""
    source, target, group, ids = topic1(PARTITIONS), topic1(PARTITIONS), new_id(), [new_id(), new_id()]
    namespace: dict[str, Any] = {}
    exec(block("transactions.md", "def copy(").text, namespace)
    done = threading.Event()
    fenced: list[str] = []

    def run(transactional_id: str, stopped: Callable[[], bool]) -> None:
        try:
            namespace["copy"](kafka1.bootstrap_servers, group, source, target, transactional_id, stopped)
        except (ProducerFenced, OutcomeUnknown):  # UNKNOWN_SERVER_ERROR if it is fenced while the broker ends it
            fenced.append(transactional_id)

    def start(transactional_id: str) -> threading.Thread:
        thread = threading.Thread(target=run, args=(transactional_id, done.is_set))
        thread.start()
        return thread

    def copied() -> list[int]:
        with client_of(kafka1) as client:
            return [number for numbers in numbers_in(client, target, PARTITIONS) for number in numbers]

    def write_and_wait(first: int) -> None:
        produce(kafka1, source, range(first, first + COUNT), PARTITIONS, settings={"batch.size": 2_000})
        wait_until(lambda: len(copied()) >= first + COUNT, timeout_s=60, every_s=0.1)

    threads = [start(ids[0])]
    try:
        write_and_wait(0)
        threads.append(start(ids[1]))
        write_and_wait(COUNT)
        threads.append(start(ids[0]))
        write_and_wait(2 * COUNT)
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    wait_until_decided(kafka1, [(target, number) for number in range(PARTITIONS)])
    assert sorted(copied()) == list(range(3 * COUNT))
    assert set(fenced) <= {ids[0]}
    # The group's coordinator learns of the end of the last transaction on its own.
    wait_until(lambda: sum(row.lag or 0 for row in describe(kafka1, group)) == 0, every_s=0.1)
