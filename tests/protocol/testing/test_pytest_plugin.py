"""The pytest plugin: its fixtures on the in-memory cluster and on a real one, and its light imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import protocol
from protocol.errors import ConfigurationError, UsageError
from protocol.testing import FakeKafka, RealKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.documents import ROOT

pytest_plugins = ["pytester"]

# The entry point may be installed or not.
PLUGIN = ("-p", "no:kafka", "-p", "spark_kafka_source.pytest_plugin", "-p", "no:cacheprovider")

ORDERS_TEST = """
    import protocol

    def test_orders(kafka):
        kafka.create_topic("orders", 2, config={"retention.ms": "-1"})
        assert kafka.produce("orders", "a", "b", partition=1) == [0, 1]
        table = protocol.read({"bootstrap.servers": kafka.bootstrap_servers}, "orders").read_all()
        assert table["value"].to_pylist() == [b"a", b"b"]
        assert [(each.partition, each.offset, each.value) for each in kafka.records("orders")] == [
            (1, 0, b"a"), (1, 1, b"b"),
        ]
        assert kafka.committed_offsets("no-such-group") == {}

    def test_next_test_has_an_empty_cluster(kafka):
        kafka.create_topic("orders")
        assert kafka.records("orders") == []
"""


def run(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_inprocess(*PLUGIN, *options)


def test_kafka_is_the_in_memory_cluster_by_default(pytester: pytest.Pytester) -> None:
    result = run(pytester, ORDERS_TEST, "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::test_orders PASSED*"])


@pytest.mark.kafka
def test_kafka_real_runs_each_test_on_both(pytester: pytest.Pytester, kafka1: LocalKafka) -> None:
    pytester.makeconftest(
        f"""
        import pytest
        from types import SimpleNamespace

        @pytest.fixture(scope="session")
        def kafka_local():
            return SimpleNamespace(bootstrap_servers={kafka1.bootstrap_servers!r})
        """
    )
    result = run(pytester, ORDERS_TEST, "-v", "--kafka-real")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*test_orders?fake? PASSED*", "*test_orders?real? PASSED*"])


def test_kafka_local_is_skipped_without_java(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = run(pytester, "def test_orders(kafka_local): raise AssertionError", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*kafka_local needs a real Kafka: The java of JAVA_HOME*"])


def test_kafka_local_is_started_once_and_closed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double replaces the broker, whose start takes seconds."""
    events: list[object] = []

    class Double:
        def __init__(self, brokers: int) -> None:
            events.append(brokers)

        def __enter__(self) -> None:
            events.append("running")

        def __exit__(self, *_: object) -> None:
            events.append("closed")

    monkeypatch.setattr("spark_kafka_source.local_kafka.LocalKafka", Double)
    test = "import pytest\n@pytest.mark.parametrize('nth', [1, 2])\ndef test_orders(kafka_local, nth): pass"
    run(pytester, test).assert_outcomes(passed=2)
    assert events == [1, "running", "closed"]


def test_own_fixture_replaces_that_of_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pytest\n@pytest.fixture(scope='session')\ndef kafka(): return 'own'")
    run(pytester, "def test_orders(kafka): assert kafka == 'own'", "--kafka-real").assert_outcomes(passed=1)


def test_unused_plugin_imports_nothing_but_the_standard_library_within_20_ms() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import spark_kafka_source.pytest_plugin; "
        "print(*sorted(set(sys.modules) - before - sys.stdlib_module_names))"
    )
    durations_us = []
    for _ in range(20):
        command = [sys.executable, "-X", "importtime", "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        own = ["protocol", "protocol.base", "protocol.base.lazy_names"]
        own += ["spark_kafka_source", "spark_kafka_source.pytest_plugin"]
        assert done.stdout.split() == own
        # Columns: time of the module itself, time with its imports, name.
        durations_us.append(int(done.stderr.splitlines()[-1].split("|")[1]))
        if min(durations_us) < 20_000:
            return
    pytest.fail(f"the plugin is imported in {min(durations_us)} microseconds")


def test_entry_point_names_the_plugin() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nkafka = "spark_kafka_source.pytest_plugin"\n' in project


class TestRealKafka:
    def test_records_without_a_key_take_turns_as_in_the_in_memory_cluster(self) -> None:
        with FakeKafka() as fake, RealKafka(fake.bootstrap_servers) as real:
            offsets, records = [], []
            for kafka, topic in ((fake, "of-fake"), (real, "of-real")):
                kafka.create_topic(topic, 3)
                written = (
                    kafka.produce(topic, "1", "2"),
                    kafka.produce(topic, "3", "4"),
                    kafka.produce(topic, "5", key="k"),
                )
                offsets.append(written)
                records.append([(record.partition, record.offset, record.value) for record in kafka.records(topic)])
        assert offsets[0] == offsets[1]
        assert records[0] == records[1]

    def test_shared_methods_give_the_same_on_both(self, kafka1: LocalKafka) -> None:
        def use(kafka: FakeKafka | RealKafka) -> list[object]:
            kafka.create_topic("shared-methods", 3, config={"retention.ms": "-1"})
            offsets = kafka.produce("shared-methods", "1", None, key="k", headers=[("h", None)], timestamp_ms=10**12)
            properties = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "shared-methods-group"}
            with protocol.KafkaConsumer(properties) as consumer:
                consumer.assign([("shared-methods", 0)])
                consumer.commit_sync({("shared-methods", 0): protocol.CommittedOffset(7)})
            return [
                offsets,
                kafka.records("shared-methods"),
                kafka.records("shared-methods", 0),
                kafka.committed_offsets("shared-methods-group"),
            ]

        with FakeKafka() as fake, RealKafka(kafka1.bootstrap_servers, exclusive=True) as real:
            assert use(fake) == use(real)
        with protocol.Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin:
            assert "shared-methods" not in admin.list_topics()
            assert "shared-methods-group" not in {group.group for group in admin.list_groups()}

    def test_only_own_topics_of_a_shared_cluster_are_deleted(self, kafka1: LocalKafka) -> None:
        with protocol.Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin:
            with RealKafka(kafka1.bootstrap_servers) as real:
                real.create_topic("own-topic")
                admin.create_topics([protocol.admin.NewTopic("topic-of-another", 1)])
            assert {"own-topic", "topic-of-another"} & admin.list_topics().keys() == {"topic-of-another"}
            admin.delete_topics(["topic-of-another"])

    @pytest.mark.parametrize(("topic", "partition"), [("nothing", None), ("nothing", 0), ("orders", 1)])
    def test_unknown_topic_or_partition_is_a_usage_error(self, topic: str, partition: int | None) -> None:
        with FakeKafka() as fake, RealKafka(fake.bootstrap_servers) as real:
            fake.create_topic("orders")
            for kafka in (fake, real):
                with pytest.raises(UsageError, match=f"{topic}{'' if partition is None else '-.'} does not exist"):
                    kafka.produce(topic, "1", partition=partition)
                with pytest.raises(UsageError, match=f"{topic}.* does not exist"):
                    kafka.records(topic, partition)
            real.close()

    def test_unknown_isolation_level_is_refused(self) -> None:
        with FakeKafka() as fake, RealKafka(fake.bootstrap_servers) as real:
            fake.create_topic("orders")
            for kafka in (fake, real):
                with pytest.raises(ConfigurationError, match=r"isolation\.level is 'committed'; allowed"):
                    kafka.records("orders", isolation_level="committed")
