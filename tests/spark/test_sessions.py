"""Queries whose SASL sessions or certificates expire: an exactly-once copy continues and has every row once.

One case runs for four seconds; in `make soak`, all cases run for a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from protocol.producer.producer import Producer
from tests.conftest import TopicFactory, topic_factory
from tests.protocol.producer.producing import numbered
from tests.protocol.sasl.test_reauthentication import WAYS
from tests.protocol.security.secure_parts import options
from tests.support import read_committed
from tests.support.background import background
from tests.support.secured_kafka import SecuredKafka
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_S = 60.0 if SOAK else 4.0
HOW = [*WAYS, "certificates that are replaced"] if SOAK else ["a session of 2 s"]
EACH_TIME_ANEW = {"connections.max.idle.ms": "200"}


@pytest.fixture
def topic(secured: SecuredKafka) -> Iterator[TopicFactory]:
    yield from topic_factory(secured.kafka)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", HOW)
def test_exactly_once_copy_continues_over_expiring_credentials(
    spark: SparkSession, secured: SecuredKafka, topic: TopicFactory, tmp_path: Path, way: str
) -> None:
    source, target = topic(), topic()
    store = tmp_path / "mine.pem"
    store.write_bytes(secured.client_certificate().read_bytes())
    who, listener = WAYS.get(way, ({"ssl.keystore.location": str(store), **EACH_TIME_ANEW}, "MUTUAL"))
    inputs = options(secured.properties(listener) | who)
    rows = spark.readStream.format("pykafka-group").options(**inputs, subscribe=source, startingOffsets="earliest")
    writer = rows.load().select("value").writeStream.format("pykafka-group").options(**inputs, topic=target)
    writer = writer.options(deliveryGuarantee="exactly-once", transactionalIdPrefix="sessions")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    ended = threading.Event()
    with background(lambda: renew(store, secured, ended)):
        try:
            count = write_numbers(secured, source)
        finally:
            ended.set()
    query.processAllAvailable()
    query.stop()
    values = read_committed.by_this_project(secured.kafka.bootstrap_servers, target)
    assert [int(value[:9]) for value in values[0]] == list(range(count))


def renew(store: Path, secured: SecuredKafka, ended: threading.Event) -> None:
    """Replace key and certificate every second until `ended`."""
    while not ended.wait(1):
        store.write_bytes(secured.client_certificate().read_bytes())


def write_numbers(secured: SecuredKafka, topic: str) -> int:
    """Write rows ten times a second for `RUN_S`; return their number."""
    count, until_s = 0, time.monotonic() + RUN_S
    with Producer({"bootstrap.servers": secured.kafka.bootstrap_servers}, linger_ms=0) as producer:
        while time.monotonic() < until_s:
            producer.send_columns(topic, numbered(count, 20)).result()
            count += 20
            time.sleep(0.1)
    return count
