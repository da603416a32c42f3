"""Run the examples of every command's help on one broker, in an order in which each finds its topics and groups."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from protocol import Producer, TransactionalProducer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import ProducerFenced
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.users import acl_settings
from tests.cli.reference_run import PASSWORD, Run
from tests.cli.runs import commit
from tests.support.documents import ROOT

_TIME_MS = 1_769_835_600_000  # 2026-01-31T05:00:00Z


def run_examples() -> Run:
    """Run all examples on a new broker."""
    quiet = {"log.retention.check.interval.ms": "3600000", "log.initial.task.delay.ms": "3600000"}
    before = Path.cwd(), dict(os.environ)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory()))
        kafka = opened.enter_context(LocalKafka(settings={**quiet, **acl_settings()}, registry=True))
        run = Run(kafka, opened.enter_context(FakeKafka()), folder, opened)
        try:
            _prepare(run)
            for steps in _STEPS:
                steps(run)
        finally:
            os.chdir(before[0])
            os.environ.clear()
            os.environ.update(before[1])
    return run


def _prepare(run: Run) -> None:
    os.chdir(run.folder)
    os.environ.update(
        HOME=str(run.folder),
        XDG_CONFIG_HOME=str(run.folder / ".config"),
        KAFKA_BOOTSTRAP_SERVERS=run.kafka.bootstrap_servers,
        SCHEMA_REGISTRY_URL=run.kafka.schema_registry_url,
        PYTHONPATH=str(ROOT),
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name in (".config/pykafka", ".config/fish/completions", "secrets"):
        (run.folder / name).mkdir(parents=True)
    (run.folder / "secrets" / "alice").write_text(PASSWORD)
    (run.folder / "secrets" / "keystore").write_text(PASSWORD)
    (run.folder / "prod.properties").write_text(f"bootstrap.servers={run.kafka.bootstrap_servers}\n")
    (run.folder / ".config" / "pykafka" / "config.toml").write_text(
        f'[profiles.prod]\nbootstrap.servers = "{run.kafka.bootstrap_servers}"\nsecurity.protocol = "PLAINTEXT"\n'
        f'sasl.password = "{PASSWORD}"\n[profiles.test]\nbootstrap.servers = "{run.test_cluster.bootstrap_servers}"\n'
    )


def _produce(run: Run, topic: str, count: int, partitions: int, headers: Mapping[str, bytes] | None = None) -> None:
    pairs = list((headers or {}).items())
    with Producer(run.properties) as producer:
        for number in range(count):
            state = "refused" if number % 7 == 6 else "paid"
            producer.send(
                *(topic, f"{state} {number}".encode()), key=f"customer-{number % 9}".encode(),
                partition=number % partitions, timestamp_ms=_TIME_MS + number * 3_000, headers=pairs,
            )  # fmt: skip


@contextmanager
def _member(run: Run, group: str, **properties: str) -> Iterator[KafkaConsumer]:
    with KafkaConsumer({**run.properties, "group.id": group, "enable.auto.commit": "false"}, **properties) as consumer:
        consumer.subscribe(["orders"])
        until_s = time.monotonic() + 60
        while not consumer.assignment and time.monotonic() < until_s:
            consumer.poll(100)
        yield consumer


def _topics(run: Run) -> None:
    run.examples_of("topics create")
    for name in ("orders-test", "orders-upper", "orders-dlq", "doctor-test", "perf-test"):
        run.kafka.create_topic(name, 2)
    run.kafka.create_topic("orders-copy", 12)
    run.kafka.create_topic("payments-test", 1)
    run.test_cluster.create_topic("orders", 12)
    _produce(run, "orders", 3_000, 2)
    run.examples_of("topics alter", "topics list", "topics describe", "topics analyze")
    run.example("pykafka topics trim orders --before 2026-01-31T06:00:00Z", shown=True)


def _records(run: Run) -> None:
    run.example("echo 'customer-7:paid' | pykafka produce orders -K : -H source=shell", shown=True)
    run.example("pykafka consume orders -o -10 -f '%p:%o %k %v\\n'", follows=True)
    with Producer(run.properties) as producer:
        producer.send("orders", b"refused 3000", key=b"customer-3", partition=0)
    run.example("pykafka consume orders -o @-1h:latest --grep refused -o json", shown=True)
    run.example("""pykafka consume orders -e --filter "headers['source'] = 'web' AND partition < 8\"""")
    run.example("pykafka consume orders -p 0,1 --to orders.parquet")
    run.example("pykafka produce orders orders.parquet -z zstd")
    run.example("pykafka consume orders -e -o json | pykafka produce orders-copy -i json")


def _schemas(run: Run) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "country", "type": "string"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    run.kafka.registry.register("orders-avro-value", json.dumps(schema))
    fields.append({"name": "note", "type": ["null", "string"], "default": None})
    (run.folder / "order.avsc").write_text(json.dumps(schema))
    run.kafka.create_topic("orders-avro")
    with Producer(run.properties) as producer:
        producer.send("orders-avro", b"\0\0\0\0\1\x0e\4DE", key=b"customer-7")
    run.example("pykafka consume orders-avro -e --decode --schema-registry http://registry:8081")
    (run.folder / "order.proto").write_text('syntax = "proto3"; message Order { int64 id = 1; string country = 2; }')
    run.kafka.create_topic("orders-proto")
    with Producer(run.properties) as producer:
        producer.send("orders-proto", b"\x08\x07\x12\x02DE")
    run.example("pykafka consume orders-proto -e --decode --value-schema order.proto --value-format protobuf")
    run.examples_of("registry subjects")
    run.example("pykafka registry schema orders-avro-value")
    run.example("pykafka registry schema --id 1 -o json", shown=True)
    run.examples_of("registry check")
    run.kafka.create_topic("shop-events")
    with Producer(run.properties) as producer:
        for name in ("Order", "Refund"):
            text = json.dumps({**schema, "name": name, "namespace": "com.shop", "fields": fields[:1]})
            schema_id = run.kafka.registry.register(f"shop-events-com.shop.{name}", text)
            producer.send("shop-events", b"\0" + schema_id.to_bytes(4, "big") + b"\x0e")
    run.example("pykafka consume shop-events -e --decode --value-types com.shop.Order,com.shop.Refund -o json")


def _groups(run: Run) -> None:
    commit(run.kafka, "orders-etl", {("orders", 0): 1_200, ("orders", 1): 1_500})
    commit(run.kafka, "payments-etl", {("payments", 0): 0})
    for name in ("orders-test", "payments-test"):
        commit(run.kafka, name, {("orders", 0): 1})
    run.examples_of("groups list")
    run.example("pykafka groups describe orders-etl --bootstrap-server broker-1:9092", shown=True)
    run.example("pykafka groups describe orders-etl --output json")
    run.example("pykafka groups lag orders-etl payments-etl", shown=True)
    run.example("pykafka groups lag orders-etl --watch --interval 2s", follows=True)
    run.example("pykafka groups lag orders-etl --serve :9308", follows=True)
    run.example("pykafka groups reset orders-etl --topic orders:0,1 --shift-by -100 --execute", shown=True)
    run.example("pykafka groups reset orders-etl --topic orders --to-datetime 2026-01-31T06:00:00Z --execute")
    run.example("pykafka groups reset orders-etl --all-topics --to-current --to-file offsets.csv")
    run.example("pykafka groups reset orders-etl --all-topics --to-latest --bootstrap-server broker-1:9092")
    run.example("pykafka groups clone orders-etl orders-etl-test")
    run.example("pykafka groups clone orders-etl orders-etl-test --topic orders --execute", shown=True)
    with _member(run, "orders-etl", group_instance_id="worker-3"):
        run.example("pykafka groups describe orders-etl payments-etl --members")
        run.example("pykafka groups remove-members orders-etl --instance-id worker-3", typed="y\n", shown=True)
    with _member(run, "orders-etl"):
        run.example("pykafka groups remove-members orders-etl --all --yes")
    run.example("pykafka groups delete orders-test --bootstrap-server broker-1:9092", typed="y\n", shown=True)
    commit(run.kafka, "orders-test", {("orders", 0): 1})
    run.example("pykafka groups delete orders-test payments-test --yes")


def _transactions(run: Run) -> None:
    for number in range(2):
        properties = {**run.properties, "transactional.id": f"orders-etl-{number}"}
        # `txn abort orders-etl-0 --execute` below fences the first producer.
        run.opened.enter_context(suppress(ProducerFenced))
        producer = run.opened.enter_context(TransactionalProducer(properties))
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders-upper", b"x", partition=number)
        producer.send("orders", b"x", partition=number)
        producer.flush()
    run.examples_of("txn list", "txn describe", "txn hanging")
    run.example("pykafka txn abort orders-etl-0 orders-etl-1 --bootstrap-server broker-1:9092")
    run.example("pykafka txn abort orders-etl-0 --execute", shown=True)
    # No transaction is open there.
    run.example("pykafka txn abort --topic orders --partition 0 --start-offset 1200 --execute", code=1)


def _settings(run: Run) -> None:
    run.example("pykafka configs set topic orders retention.ms=86400000 cleanup.policy=delete", shown=True)
    secret = "listener.name.tls.ssl.keystore.password=file:/run/secrets/keystore"
    run.example(f"pykafka configs set broker 1 --secret {secret} --dry-run")
    run.example("pykafka configs describe topic orders --setting retention.ms --documentation -o yaml", shown=True)
    run.example("pykafka configs describe broker 1 default")
    run.examples_of("configs list")
    run.example("pykafka configs delete topic orders retention.ms", typed="y\n", shown=True)
    run.example("pykafka configs delete broker default log.cleaner.threads --yes")


def _security(run: Run) -> None:
    create = "pykafka acls create --principal User:alice --consumer --topic orders --group orders-etl"
    run.example(create, shown=True)
    run.example("pykafka acls create --principal User:bob --operation describe --topic orders- --prefixed")
    run.shown_once("pykafka acls list --principal User:alice", "orders-etl")
    run.example("pykafka acls list --topic orders --pattern match -o csv")
    run.example("pykafka acls delete --principal User:alice --topic orders", typed="y\n", shown=True)
    run.example("pykafka acls delete --topic orders-test --yes")
    run.example("pykafka users set alice", typed=f"{PASSWORD}\n{PASSWORD}\n", shown=True)
    run.example("pykafka users set alice --mechanism SCRAM-SHA-256 --password-from file:/run/secrets/alice")
    os.environ["BOB"] = PASSWORD
    for name in ("alice", "bob"):
        run.example(f"pykafka users set {name} --mechanism SCRAM-SHA-256 --password-from env:BOB")
    run.shown_once("pykafka users list", "bob")
    run.example("pykafka users list alice bob -o json")
    run.example("pykafka users delete alice bob --mechanism SCRAM-SHA-256 --yes")
    run.until_gone("pykafka users list", "SCRAM-SHA-256")
    run.example("pykafka users delete alice", typed="y\n", shown=True)
    run.examples_of("quotas set")
    run.shown_once("pykafka quotas list", "request_percentage")
    run.example("pykafka quotas list --user alice -o json")
    run.example("pykafka quotas delete --user alice producer_byte_rate --yes")
    run.until_gone("pykafka quotas list", "producer_byte_rate")
    run.example("pykafka quotas delete --user alice", typed="y\n", shown=True)


def _cluster(run: Run) -> None:
    run.examples_of(
        "cluster describe", "cluster features", "cluster quorum", "cluster log-dirs", "cluster set-features"
    )


def _copies(run: Run) -> None:
    run.example("pykafka copy orders orders-test -o -1000", shown=True)
    run.example(
        "pykafka copy orders orders --to-bootstrap-server test-broker-1:9092 --keep-partitions --follow", follows=True
    )
    _produce(run, "orders-dlq", 3, 1, {"__connect.errors.topic": b"orders"})
    run.examples_of("replay")


def _checkpoint(run: Run) -> None:
    folder = run.folder / "checkpoints" / "orders-upper"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"47de275a-d0ec-4be7-96c7-3f4cf0082389"}')
    for number, end in ((16, 900), (17, 1_300)):
        offsets = json.dumps({"orders": {"0": end, "1": end + 50}})
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchTimestampMs":{_TIME_MS}}}\n{offsets}')
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    run.examples_of("checkpoint inspect", "checkpoint diff")


def _others(run: Run) -> None:
    run.examples_of("doctor", "perf produce", "perf consume")
    run.examples_of("fake", follows=True)
    run.example("pykafka profile use prod", shown=True)
    run.examples_of("profile list", "profile show")
    run.example("pykafka profile use --none")
    run.examples_of("completion")


def _deletion(run: Run) -> None:
    run.example("pykafka topics trim orders:0,1 --before-offset 1200 --execute")
    run.example("pykafka topics delete orders-test", typed="y\n", shown=True)
    run.kafka.create_topic("orders-test", 1)
    run.example("pykafka topics delete orders-test payments-test --yes")


_STEPS: tuple[Callable[[Run], None], ...] = (
    *(_topics, _records, _schemas, _groups, _transactions, _settings, _security, _cluster, _copies, _checkpoint),
    *(_others, _deletion),
)
