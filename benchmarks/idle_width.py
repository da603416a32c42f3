"""Processor time of a consumer that waits for records of very many partitions on many brokers.

    python -m benchmarks.idle_width [--partitions 10000] [--brokers 10] [--seconds 10]

The brokers are in-memory ones in another process, so only the client's time counts. The first polls, which look up
leaders and offsets and open fetch sessions, do not count. One process cannot serve 10,000 partitions on 50 brokers in
time: a run whose positions are not known fails, since a consumer that has not started is idle, too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from protocol import KafkaConsumer
from protocol.testing import FakeKafka

TOPIC = "wide"
_WARM_UP_S = 15.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--brokers", type=int, nargs="+", default=[10])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    for brokers in options.brokers:
        share = _idle_share(brokers, options.partitions, options.seconds)
        print(f"{options.partitions} partitions on {brokers} brokers, idle: {share:.1%} of a core", flush=True)


def _idle_share(brokers: int, partitions: int, seconds: float) -> float:
    ours, child = multiprocessing.Pipe()
    cluster = multiprocessing.get_context("spawn").Process(target=_serve, args=(child, brokers, partitions))
    cluster.start()
    try:
        with KafkaConsumer({"bootstrap.servers": ours.recv(), "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(TOPIC, partition) for partition in range(partitions)])
            _poll_for(consumer, _WARM_UP_S)
            for partition in range(partitions):
                consumer.position((TOPIC, partition))  # waits for its start offset
            started_s, started_cpu_s = time.monotonic(), time.process_time()
            _poll_for(consumer, seconds)
            return (time.process_time() - started_cpu_s) / (time.monotonic() - started_s)
    finally:
        ours.send(None)
        cluster.join()


def _poll_for(consumer: KafkaConsumer, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        consumer.poll(timeout_ms=1_000)


def _serve(pipe: Connection, brokers: int, partitions: int) -> None:
    """Run the cluster until the parent sends something."""
    with FakeKafka(brokers) as kafka:
        kafka.record_requests = False
        kafka.create_topic(TOPIC, partitions)
        pipe.send(kafka.bootstrap_servers)
        pipe.recv()


if __name__ == "__main__":
    main()
