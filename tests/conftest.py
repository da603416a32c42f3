"""Shared fixtures: a real Kafka (three brokers, or one), a Spark session, topics with unique names.

Fixtures start their servers for the first test that uses them, once for the whole run. Such a test is marked `kafka` or
`spark` automatically (`worker_groups.py`), so `pytest -m "not kafka and not spark"` runs the others. Each process of
`pytest -n` has a separate Spark and Kafka if needed.
"""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka import cluster as local_kafka
from spark_kafka_source.local_kafka.cluster import DEFAULT_VERSION
from spark_kafka_source.local_kafka.config import version_numbers
from tests.support import secured_kafka, spark_home
from tests.support.fake_local_kafka import FakeLocalKafka
from tests.support.jvm_connector import jvm_connector_jars, spark_avro_jars
from tests.support.secured_kafka import SecuredKafka
from tests.support.soak import SOAK
from tests.support.spark_home import BRIEF_LIFE
from tests.support.wait_for_brokers import wait_until_known
from tests.support.wait_until import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.support.worker_groups"]

ROOT = Path(__file__).parent.parent

# `make matrix` runs the tests of the client, and those of groups, against older brokers, too.
KAFKA_VERSION = os.environ.get("SPARK_KAFKA_SOURCE_KAFKA_VERSION", DEFAULT_VERSION)
# `make test-on-fake` runs tests of the client that need a real Kafka on the in-memory cluster.
ON_FAKE = os.environ.get("SPARK_KAFKA_SOURCE_ON_FAKE") == "1"
NEEDS_KIP_848 = pytest.mark.skipif(
    version_numbers(KAFKA_VERSION) < (4, 0), reason="the consumer protocol begins with Kafka 4.0"
)

# Short intervals, so that tests wait less.
_EAGER = {
    "log.cleaner.backoff.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    # Followers of a new topic begin at once, so that its first write does not take a second.
    "replica.fetch.backoff.ms": "50",
    # Idle brokers write fewer no-op records to the metadata log.
    "metadata.max.idle.interval.ms": "5000",
    # Brokers check for timed out transactions at this interval.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # Short session timeout and heartbeat interval for groups of KIP-848.
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
}
_RACKS = {broker_id: {"broker.rack": f"rack-{broker_id}"} for broker_id in (1, 2, 3)}

# The port of a broker that a test has stopped must not be taken by another process of `pytest -n 4`.
if (worker := os.environ.get("PYTEST_XDIST_WORKER", "gw")[2:]).isdigit():
    every = local_kafka.PORTS
    local_kafka.PORTS = range(every.start + int(worker) % 4, every.stop, 4)

# A shell's background job ignores Ctrl-C, and so would all processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TopicFactory = Callable[..., str]

# Examples have no deadline: tests share two cores.
# The same examples in each run; `make soak` looks for new ones.
hypothesis.settings.register_profile("usual", deadline=None, max_examples=30, derandomize=True)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=1_000)
hypothesis.settings.load_profile("soak" if SOAK else "usual")

# Before Spark starts: its workers import the packages of this checkout.
spark_home.use()
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, object]:
    # Ten thousand tests in memory; without this, each full collection of garbage goes through them.
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[LocalKafka]:
    """Return three brokers, ids 1 to 3, in racks `rack-1` to `rack-3`. A test restarts each broker that it kills."""
    from tests.support.worker_groups import THREE

    if ON_FAKE:
        with FakeLocalKafka(3, settings=_EAGER) as fake:
            yield fake
        return
    with LocalKafka(3, KAFKA_VERSION, settings=_EAGER, broker_settings=_RACKS, jvm_options=BRIEF_LIFE) as running:
        pytestconfig.stash[THREE] = running
        yield running


@pytest.fixture(scope="session")
def kafka1() -> Iterator[LocalKafka]:
    """Return one broker, for tests that need only one."""
    if ON_FAKE:
        with FakeLocalKafka(1, settings=_EAGER) as fake:
            yield fake
        return
    with LocalKafka(1, KAFKA_VERSION, settings=_EAGER, jvm_options=BRIEF_LIFE) as running:
        yield running


@pytest.fixture(scope="session")
def secured(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Return one broker with TLS listeners."""
    from tests.support.worker_groups import SECURED

    if version_numbers(KAFKA_VERSION) < (3, 5):
        pytest.skip("brokers without ZooKeeper know users of SCRAM since Kafka 3.5")
    running = secured_kafka.start(tmp_path_factory.mktemp("secured"), KAFKA_VERSION, settings=_EAGER)
    with running.kafka:
        pytestconfig.stash[SECURED] = running.kafka
        yield running


@pytest.fixture
def topic(kafka: LocalKafka) -> Iterator[TopicFactory]:
    """Return `topic(partitions=1, replication_factor=1, config=None, prefix="topic") -> name`, for topics on `kafka`.

    Only tests that stop a broker need a replication factor above 1: followers cost more CPU time than most tests. All
    brokers know all leaders when the function returns. Records are kept until the topics are deleted, after the test.
    """
    yield from topic_factory(kafka)


@pytest.fixture
def topic1(kafka1: LocalKafka) -> Iterator[TopicFactory]:
    """Create topics as `topic` does, on `kafka1`."""
    yield from topic_factory(kafka1)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a session with `conf/spark-defaults.conf`, in which Spark discovers the data source of this checkout.

    `format("kafka")` is Spark's own JVM connector, and `from_avro` of its Avro jar, to compare with.
    """
    from pyspark.sql import SparkSession

    jars = ",".join(map(str, [*jvm_connector_jars(), *spark_avro_jars()]))
    session = SparkSession.builder.appName("tests").config("spark.jars", jars).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


def topic_factory(kafka: LocalKafka) -> Iterator[TopicFactory]:
    from confluent_kafka.admin import AdminClient, NewTopic

    # librdkafka logs every stopped broker
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    made: list[str] = []

    def create(
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        prefix: str = "topic",
    ) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:10]}"
        # Brokers look every second for records to delete, and many tests write old timestamps.
        new = NewTopic(name, partitions, replication_factor, config={"retention.ms": "-1", **(config or {})})
        failures: list[BaseException | None] = []

        def created() -> bool:
            failures[:] = [admin.create_topics([new])[name].exception(30)]
            # An earlier request without a reply may have created the topic.
            return failures == [None] or "TOPIC_ALREADY_EXISTS" in str(failures)

        made.append(name)
        wait_until(created, lambda: str(failures), every_s=0.1)
        wait_until_known(kafka, name, partitions)
        return name

    yield create
    if made:
        for deleted in admin.delete_topics(made, operation_timeout=0).values():
            deleted.exception(30)  # the test may have deleted the topic
