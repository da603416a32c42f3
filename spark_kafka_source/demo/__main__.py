"""Run the demo: a local Kafka, a Spark query between two topics, and the group's lag from Kafka's command-line tool.

A thread sends orders to the topic `orders`. A streaming query with the group `orders-etl` sums them by country and
window and writes the sums to `revenue`. Finally the demo compares these sums with the orders that were sent.

Needs Java 17 and PySpark, takes about a minute, and removes its files. The exit code is 0 only if every sum is right
and the group's lag is 0.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from protocol.admin.topics import NewTopic, create_topic
from protocol.base.clock import SYSTEM_CLOCK
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import ConfigurationError, KafkaError
from spark_kafka_source.demo.orders import OrderStream, Sum, SumKey, make_order
from spark_kafka_source.demo.screen import Screen, Table, Watch
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.jars import find_java
from spark_kafka_source.local_kafka.secured import PROTOCOLS

LOG = "spark.log"
# Limit of each step, far longer than a step takes on a busy machine.
_TIMEOUT_S = 300
_BAR_WIDTH = 24
# Two batches may read the orders sent before the query, or each batch three times as many as arrive meanwhile.
_BATCHES = 2
_CATCH_UP = 3
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    brokers: int, seconds: float, per_second: float, security: str, folder: Path, picture: Path | None, screen: Screen
) -> bool:
    """Run the demo.

    `brokers`: number of brokers; each has a replica of every partition.
    `seconds`: time between the first batch and the last order.
    `per_second`: orders per second.
    `security`: security protocol of the brokers, in lower case.
    `folder`: directory for the checkpoint and Spark's log.
    `picture`: file for the picture of the query. Default: a new PNG file.
    `screen`: receives all output.
    Returns True if the results are right and the final lag is 0.
    """
    with (
        LocalKafka(brokers=brokers, security=security, report=screen.print_timed) as kafka,
        _client(kafka, security) as client,
    ):
        # PySpark is imported after the checks of `main`, and while the brokers settle.
        from spark_kafka_source.demo import query as demo_query

        for topic, partitions in ((demo_query.ORDERS, 6), (demo_query.REVENUE, 3)):
            create_topic(client, NewTopic(topic, partitions, replication_factor=brokers))
            screen.print_timed(f"topic {topic}: {partitions} partitions, each on all brokers")
        options = {f"kafka.{name}": value for name, value in kafka.client_properties(security.upper()).items()}
        orders = OrderStream(client, demo_query.ORDERS, per_second, demo_query.WINDOW_S)
        orders.start()
        screen.print_timed(f"{per_second:g} orders a second go into {orders.topic}, keyed by customer, such as")
        screen.print_line(make_order(1, SYSTEM_CLOCK.wall_ms()).to_json())
        with _signals_deferred(), _stderr_to(folder / LOG):  # inherited by the JVM and its Python workers
            spark = demo_query.open_session()
        screen.print_timed(
            f"Spark {spark.version} reads them as group {demo_query.GROUP}, a batch every {demo_query.TRIGGER_S} s,"
        )
        screen.print_line(f"and writes the revenue per country and {demo_query.WINDOW_S} s to {demo_query.REVENUE}")
        try:
            limit = round(max(orders.sent / _BATCHES, _CATCH_UP * per_second * demo_query.TRIGGER_S))
            query = demo_query.start_query(spark, options, str(folder / "checkpoint"), limit)
            watch = Watch(query, client, options, demo_query.GROUP, demo_query.ORDERS, screen)
            _follow(watch, orders, seconds, screen)
            query.processAllAvailable()  # the last closed windows
            watch.show_new_batches()
            query.stop()
            screen.print_line()
            results = demo_query.read_results(spark, options)
        finally:
            spark.stop()
        results_match = _check(results, orders.sums, watch.late_rows, screen)
        lag_is_0 = _show_group(kafka, demo_query.GROUP, screen)
        if find_spec("matplotlib") is not None:
            screen.print_timed(
                f"rates, batch time and lag as a picture: {watch.history.save(picture or _new_file('.png'))}"
            )
        return lag_is_0 and results_match


def _follow(watch: Watch, orders: OrderStream, seconds: float, screen: Screen) -> None:
    screen.print_line()
    screen.print_line(
        "Each batch, and the offsets of all partitions together. The offsets of each batch are committed to the group"
    )
    screen.print_line("when the batch is complete, so the lag (log end less committed) is what Kafka's own tools see.")
    screen.print_line("Batch 0 is slow: Spark starts its Python workers and compiles the query first.")
    watch.header()
    watch.wait_until(lambda: orders.failed or watch.began, "no batch has completed", _TIMEOUT_S)
    end_s = SYSTEM_CLOCK.now_s() + seconds
    watch.wait_until(lambda: orders.failed or SYSTEM_CLOCK.now_s() >= end_s, "the time is not up", seconds + _TIMEOUT_S)
    orders.stop()
    screen.print_timed(f"no more orders: {orders.sent:,} were sent and acknowledged, the query catches up")
    watch.wait_until(watch.caught_up, "the group has not caught up", _TIMEOUT_S)


def _check(results: Sequence[tuple[SumKey, Sum]], sent: Mapping[SumKey, Sum], late_rows: int, screen: Screen) -> bool:
    """Print the results; return True if all sums up to the last closed window equal the orders sent, less late ones."""
    sums = dict(results)
    if not sums:
        screen.print_timed("the result topic is empty: no window has closed; increase --seconds")
        return False
    last = max(key.start_s for key in sums)
    _show_window(last, sums, screen)
    expected = {key: value for key, value in sent.items() if key.start_s <= last}
    differing = [key for key in expected.keys() | sums.keys() if sums.get(key) != expected.get(key)]
    windows = len({key.start_s for key in sums})
    if not differing:
        screen.print_line(f"all {len(sums)} sums of {windows} windows equal the orders sent, to the cent")
        return True
    missing = sum(value.orders for value in expected.values()) - sum(value.orders for value in sums.values())
    screen.print_line(
        f"{len(differing)} of {len(expected)} sums differ from the orders sent: {missing:,} orders are missing,"
    )
    screen.print_line(f"{late_rows:,} arrived after their window had closed (the machine may be overloaded)")
    return missing == late_rows > 0


def _show_window(start_s: int, sums: Mapping[SumKey, Sum], screen: Screen) -> None:
    screen.print_timed("read with spark.read from the result topic, the last closed window:")
    table = Table(screen, {"window": -8, "country": -7, "orders": 7, "revenue": 12, "": -_BAR_WIDTH})
    table.header()
    rows = {key: value for key, value in sums.items() if key.start_s == start_s}
    largest_cents = max(value.cents for value in rows.values())
    window = f"{datetime.fromtimestamp(start_s, timezone.utc):%H:%M:%S}"
    for key, value in sorted(rows.items(), key=lambda row: -row[1].cents):
        bar = "=" * round(_BAR_WIDTH * value.cents / largest_cents)
        table.row(window, key.country, value.orders, f"{value.cents / 100:,.2f}", bar)
    screen.print_line()


def _show_group(kafka: LocalKafka, group: str, screen: Screen) -> bool:
    """Print the group as Kafka's command-line tool describes it; return True if every partition has lag 0."""
    screen.print_timed(f"Kafka's own tool: kafka-consumer-groups.sh --describe --group {group}")
    output = kafka.describe_group(group)
    screen.print_verbatim(output.rstrip())
    screen.print_line()
    lines = [line.split() for line in output.splitlines() if line.strip()]
    rows = [dict(zip(lines[0], line, strict=False)) for line in lines[1:]] if lines else []
    lagging = [f"{row['TOPIC']}-{row['PARTITION']}: {row['LAG']}" for row in rows if row.get("LAG") != "0"]
    if not rows or lagging:
        screen.print_timed(f"the lag is not 0: {', '.join(lagging) or 'the group does not exist'}")
        return False
    screen.print_timed(f"lag 0 on all {len(rows)} partitions")
    return True


def _client(kafka: LocalKafka, security: str) -> Client:
    return Client(parse_client({**kafka.client_properties(security.upper()), "client.id": "demo"}))


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of this process, and of programs started meanwhile, to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _end_on_signals() -> None:
    """Handle termination signals like Ctrl-C, so that every `with` block cleans up."""
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals until the block ends: interrupting a starting Spark would leave its JVM running."""
    pending: list[int] = []
    for number in _ENDING_SIGNALS:
        signal.signal(number, lambda number, _: pending.append(number))
    try:
        yield
    finally:
        _end_on_signals()  # PySpark has replaced the handlers
        if pending:
            raise KeyboardInterrupt


def _new_file(suffix: str) -> Path:
    """Return a new file in the temporary folder, which other users have, too."""
    descriptor, path = tempfile.mkstemp(suffix, "spark-kafka-source-demo-")
    os.close(descriptor)
    return Path(path)


def _require_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise ConfigurationError('The demo needs PySpark 4: pip install "pyspark>=4.0"')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m spark_kafka_source.demo",
        description="Run a Spark query that reads a topic as a consumer group, commits complete batches and writes.",
    )
    parser.add_argument(
        "--brokers", type=int, default=3, help="number of brokers; each has a replica of every partition (default 3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=30, help="seconds between the first batch and the last order (default 30)"
    )
    parser.add_argument("--rate", type=float, default=500, help="orders per second (default 500)")
    parser.add_argument("--security", choices=["plaintext", *map(str.lower, PROTOCOLS)], default="plaintext")
    parser.add_argument(
        "--picture",
        type=Path,
        help="file for the picture of the query, if matplotlib is installed (default: a new PNG file in "
        f"{tempfile.gettempdir()})",
    )
    parsed = parser.parse_args(arguments)
    _end_on_signals()
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="spark-kafka-source-demo-") as folder:
        log = Path(folder) / LOG
        logging.basicConfig(filename=log)
        try:
            find_java()
            _require_pyspark()
            settings = (parsed.brokers, parsed.seconds, parsed.rate, parsed.security)
            return 0 if run(*settings, Path(folder), parsed.picture, screen) else 1
        except KeyboardInterrupt:
            screen.print_timed("stopped")
        except KafkaError as error:
            screen.print_timed(f"error: {error}")
        except Exception as error:  # raised by Spark
            log_copy = shutil.copy(log, _new_file(".log"))
            screen.print_timed(f"error: {str(error).partition('=== Streaming Query')[0].rstrip()}")
            screen.print_line(f"Spark's log: {log_copy}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
