"""`pykafka topics`, read back by librdkafka."""

from __future__ import annotations

from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient, ConfigResource

from protocol import Producer, TransactionalProducer
from protocol.testing import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke_at, rows, run_at_kafka1
from tests.conftest import TopicFactory
from tests.support.wait_for_brokers import wait_until_gone, wait_until_known
from tests.support.wait_until import wait_until

run = run_at_kafka1("topics")


def fill(kafka: LocalKafka, topic: str, partition: int, count: int, keys: int = 1) -> None:
    with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
        for number in range(count):
            producer.send(
                topic, b"12345678", key=b"%d" % (number % keys), partition=partition, timestamp_ms=number * 10
            )


def test_list_and_describe_show_partitions_and_offsets(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(2)
    fill(kafka1, name, 1, 5)
    (listed,) = [row for row in rows(run("list", "-o", "json")) if row["topic"] == name]
    assert (listed["partitions"], listed["replicas"], listed["under_replicated"]) == (2, 1, 0)
    described = rows(run("describe", name, "-o", "json"))
    assert [(row["partition"], row["log_start_offset"], row["log_end_offset"]) for row in described] == [
        (0, 0, 0),
        (1, 0, 5),
    ]


def test_alter_changes_partitions_and_settings(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(1, config={"retention.ms": "77777"})
    run("alter", name, "--partitions", "3", "--config", "max.message.bytes=55555", "--delete-config", "retention.ms")
    wait_until_known(kafka1, name, 3)
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap_servers})

    def seen() -> tuple[str, bool]:
        (entries,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]).values()
        result = entries.result(10)
        return result["max.message.bytes"].value, result["retention.ms"].is_default

    wait_until(lambda: seen() == ("55555", True), seen)
    assert [(row["name"], row["value"]) for row in rows(run("describe", name, "--configs", "-o", "json"))] == [
        ("max.message.bytes", "55555")
    ]
    assert "INVALID_PARTITIONS" in run("alter", name, "--partitions", "2", code=1).stderr
    run("alter", name, code=2)


def test_trim_deletes_only_with_execute(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(2)
    fill(kafka1, name, 0, 10)
    fill(kafka1, name, 1, 4)
    by_time = ("trim", name, "--before", "1970-01-01T00:00:00.055Z", "-o", "json")
    assert [row["new_log_start_offset"] for row in rows(run(*by_time))] == [6, 4]
    assert [row["log_start_offset"] for row in rows(run("describe", name, "-o", "json"))] == [0, 0]
    run("trim", f"{name}:0", "--before-offset", "3", "--execute")
    assert [row["log_start_offset"] for row in rows(run("describe", name, "-o", "json"))] == [3, 0]
    run("trim", name, "--all", "--execute")
    assert [row["log_start_offset"] for row in rows(run("describe", name, "-o", "json"))] == [10, 4]
    run("trim", name, code=2)
    run("trim", f"{name}:9", "--all", code=2)


def test_analyze_reports_counts_times_sizes_and_key_skew(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(2)
    fill(kafka1, name, 0, 100, keys=4)
    first, second = rows(run("analyze", name, "-o", "json"))
    assert (first["records"], first["first_timestamp"], first["last_timestamp"]) == (100, 0, 990)
    assert (first["keys"], first["top_key_share"], first["null_keys"]) == (4, 0.25, 0)
    assert (first["bytes_per_record"], round(first["records_per_s"], 3)) == (9.0, 101.01)
    assert first["bytes"] > 0
    assert (second["records"], second["keys"]) == (0, None)
    (sampled, _) = rows(run("analyze", name, "--last", "10", "-o", "json"))
    assert (sampled["records"], sampled["first_timestamp"]) == (100, 900)


def test_delete_asks_first_and_reports_each_topic(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(1)
    assert "Aborted" in run("delete", name, code=1).stderr
    failed = run("delete", name, "no-such-topic", "--yes", code=1)
    assert failed.stdout == f"deleted {name}\n"
    assert "no-such-topic" in failed.stderr
    wait_until_gone(kafka1, name)
    assert name not in [row["topic"] for row in rows(run("list", "-o", "json"))]


def test_replicas_are_on_the_brokers_of_the_replica_assignment(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = f"{topic()}-assigned"
    ids = sorted(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10).brokers)
    run = partial(invoke_at, kafka, "topics")

    def replicas() -> list[list[int]]:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        partitions = admin.list_topics(name, timeout=10).topics[name].partitions
        return [partitions[number].replicas for number in sorted(partitions)]

    first, second, third = [ids[1], ids[0]], [ids[2], ids[1]], [ids[0], ids[2]]
    two, three = (",".join(f"{a}:{b}" for a, b in replicas) for replicas in ([first, second], [first, second, third]))
    assert run("create", name, "--replica-assignment", two, "--validate-only").output == f"valid: {name}\n"
    assert run("create", name, "--replica-assignment", two).output == f"created {name}\n"
    wait_until_known(kafka, name, 2)
    assert replicas() == [first, second]
    run("alter", name, "--partitions", "3", "--replica-assignment", three, "--validate-only")
    assert replicas() == [first, second]
    run("alter", name, "--partitions", "3", "--replica-assignment", three)
    wait_until_known(kafka, name, 3)
    assert replicas() == [first, second, third]
    run("delete", name, "--yes")


def test_analyze_of_committed_records_ends_before_open_transaction(fake: FakeKafka) -> None:
    fake.produce("orders", b"1")
    with TransactionalProducer({"bootstrap.servers": fake.bootstrap_servers, "transactional.id": "t"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"2").result(30)
        options = ("-X", "isolation.level=read_committed", "--timeout", "10s", "-o", "json")
        (row,) = rows(invoke_at(fake, "topics", "analyze", "orders", *options))
    assert row["records"] == 1


def test_create_sets_partitions_and_leaves_an_existing_topic_alone(kafka_fake: FakeKafka) -> None:
    create = ("topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=1000")
    assert invoke_at(kafka_fake, *create).output == "created orders\n"
    assert len(rows(invoke_at(kafka_fake, "topics", "describe", "orders", "-o", "json"))) == 3
    assert "TOPIC_ALREADY_EXISTS" in invoke_at(kafka_fake, *create, code=1).output
    for name, printed in (("orders", "orders exists\n"), ("bills", "created bills\n")):
        assert invoke_at(kafka_fake, "topics", "create", name, "--if-not-exists").output == printed


def test_topic_deleted_during_list_does_not_fail_the_others(fake: FakeKafka) -> None:
    fake.create_topic("payments")
    # A second request, about these topics, would come too late for one of them.
    fake.before[METADATA] = lambda body: body["topics"] and fake.controller.delete_topic("orders")
    assert "payments" in {row["topic"] for row in rows(invoke_at(fake, "topics", "list", "-o", "json"))}


def test_partition_without_leader_is_described_without_offsets() -> None:
    with FakeKafka(2) as fake:
        fake.create_topic("orders", 2)
        fake.stop(2)
        result = invoke_at(fake, "topics", "describe", "orders", "--timeout", "5s", "-o", "json")
    assert sorted((row["leader"], row["log_end_offset"]) for row in rows(result)) == [(-1, None), (1, 0)]
