"""`pykafka doctor` on good brokers, and on those that a client must refuse."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import protocol
from protocol import TransactionalProducer
from protocol.admin import AclBinding, AclOperation, Admin, QuorumDescription, QuorumReplica, ResourceType
from protocol.testing import FakeKafka
from spark_kafka_source.cli import doctor_checks
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke, invoke_at, rows
from tests.conftest import TopicFactory
from tests.protocol.sasl.acls import BOB
from tests.support.secured_kafka import SecuredKafka
from tests.support.wait_until import wait_until


def findings(
    properties: dict[str, str], *arguments: str, code: int | None = 0, **env: str
) -> dict[tuple[str, str], Any]:
    """Run the command; return the findings by check and subject."""
    result = invoke("doctor", *options_of(properties), *arguments, "-o", "json", code=code, **env)
    return {(row["check"], row["subject"]): row for row in rows(result)}


def options_of(properties: dict[str, str]) -> list[str]:
    return [f"-X{name}={value}" for name, value in properties.items()]


def test_good_broker_passes_every_check(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic, servers = topic1(1), kafka1.bootstrap_servers
    options = ("--topic", topic, "--group", f"g-{topic}", "--write", topic)
    findings_by_check = findings({"bootstrap.servers": servers}, *options, PYSPARK_PYTHON=sys.executable)
    assert {row["status"] for row in findings_by_check.values()} == {"ok"}
    assert findings_by_check["dns", servers]["detail"] == "127.0.0.1"
    assert "offset 0, acknowledged" in findings_by_check["write", topic]["detail"]
    assert Path(findings_by_check["python", "import"]["detail"].removeprefix("protocol is ")).is_file()
    again = findings({"bootstrap.servers": servers}, "--topic", topic)
    assert again["read", topic]["detail"] == "offset 0 of partition 0: 1 record"


def test_certificate_is_shown_and_login_checked(secured: SecuredKafka) -> None:
    properties = secured.properties("SASL_SSL")
    findings_by_check = findings({**properties})
    (tls,) = [row for (check, _), row in findings_by_check.items() if check == "tls"]
    # The certificates of a local Kafka are valid for ten days.
    assert (tls["status"], tls["remedy"]) == ("warning", "renew the broker's certificate")
    assert "127.0.0.1" in tls["detail"]
    assert "valid until" in tls["detail"]
    assert "SASL_SSL" in findings_by_check["connection", properties["bootstrap.servers"]]["detail"]


@pytest.mark.parametrize(
    ("listener", "says"),
    [("EXPIRED", "has expired"), ("EARLY", "not valid yet"), ("ELSEWHERE", "broker-1.example.com")],
)
def test_refused_certificate_is_named_with_remedy(secured: SecuredKafka, listener: str, says: str) -> None:
    properties = secured.properties(listener)
    findings_by_check = findings(properties, code=1)
    servers = properties["bootstrap.servers"]
    assert findings_by_check["tcp", servers]["status"] == "ok"
    assert findings_by_check["tls", servers]["status"] == "failed"
    assert says in findings_by_check["connection", servers]["detail"]


def test_wrong_password_fails_at_connection(secured: SecuredKafka) -> None:
    properties = {**secured.properties("SASL_PLAINTEXT"), **BOB}
    properties["sasl.jaas.config"] = properties["sasl.jaas.config"].replace("bob-secret", "wrong-one")
    findings_by_check = findings(properties, code=1)
    row = findings_by_check["connection", properties["bootstrap.servers"]]
    assert (row["status"], "sasl.jaas.config" in row["remedy"]) == ("failed", True)
    assert "wrong-one" not in json.dumps(list(findings_by_check.values()))


def test_missing_acls_are_named(secured: SecuredKafka) -> None:
    properties, topic = {**secured.properties("SASL_PLAINTEXT"), **BOB}, "doctor-orders"
    secured.kafka.create_topic(topic)
    subjects = ("--topic", topic, "--group", "doctor-etl")
    findings_by_check = findings(properties, *subjects, code=1)
    assert findings_by_check["topic", topic]["status"] == "failed"
    assert "acls create" in findings_by_check["topic", topic]["remedy"]
    with Admin(bootstrap_servers=secured.kafka.bootstrap_servers) as admin:
        admin.create_acls(
            [
                AclBinding(ResourceType.TOPIC, topic, "User:bob", AclOperation.READ),
                AclBinding(ResourceType.GROUP, "doctor-etl", "User:bob", AclOperation.DESCRIBE),
            ]
        )
    # Until the broker has learnt the ACLs, the command fails.
    acls = {("topic ACLs", topic), ("group ACLs", "doctor-etl")}
    wait_until(lambda: findings(properties, *subjects, code=None).keys() >= acls, every_s=0.2)
    findings_by_check = findings(properties, *subjects, code=1)
    assert findings_by_check["topic ACLs", topic]["status"] == "warning"
    assert findings_by_check["topic ACLs", topic]["remedy"].endswith("missing to write: write")
    assert findings_by_check["read", topic]["status"] == "ok"
    assert findings_by_check["group ACLs", "doctor-etl"]["status"] == "failed"
    assert findings_by_check["clock", "controller"]["status"] == "skipped"
    assert "--cluster" in findings_by_check["clock", "controller"]["remedy"]


def test_unknown_host_and_closed_port_are_told_apart() -> None:
    findings_by_check = findings(
        {"bootstrap.servers": "no-such-host.invalid:9092,127.0.0.1:1"}, "--timeout", "2s", code=1
    )
    assert findings_by_check["dns", "no-such-host.invalid:9092"]["status"] == "failed"
    assert findings_by_check["dns", "127.0.0.1:1"]["status"] == "ok"
    assert findings_by_check["tcp", "127.0.0.1:1"]["status"] == "failed"
    assert "connection" not in {check for check, _ in findings_by_check}, "it would wait, and say the same"


@pytest.mark.parametrize(("ahead_ms", "status"), [(5_000, "warning"), (-5_000, "warning"), (120_000, "failed")])
def test_clock_difference_is_measured(
    kafka1: LocalKafka, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, status: str
) -> None:
    now_ms = doctor_checks.now_ms
    monkeypatch.setattr(doctor_checks, "now_ms", lambda: now_ms() + ahead_ms)
    findings_by_check = findings({"bootstrap.servers": kafka1.bootstrap_servers}, code=int(status == "failed"))
    row = findings_by_check["clock", "controller"]
    assert row["status"] == status
    shown_ms = int(row["detail"].split()[3])
    assert abs(shown_ms - abs(ahead_ms)) < 1_000
    assert ("ahead" in row["detail"]) == (ahead_ms > 0)


def bare_python(path: Path) -> Path:
    """Write a program that runs this Python without its packages."""
    path.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return path


def test_worker_without_packages_and_other_pykafka_are_found(
    kafka1: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = bare_python(tmp_path / "bare-python")
    (tmp_path / "pykafka.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    findings_by_check = findings({"bootstrap.servers": kafka1.bootstrap_servers}, code=1, PYSPARK_PYTHON=str(bare))
    row = findings_by_check["spark worker", str(bare)]
    assert (row["status"], "pip install" in row["remedy"]) == ("failed", True)
    assert findings_by_check["python", "pykafka"]["status"] == "warning"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("no program", "Exec format error"),
        ("#!/bin/sh\nexec sleep 60\n", "no answer"),
        ("#!/bin/sh\necho no\n", "no answer"),
    ],
)
def test_worker_that_does_not_answer_is_a_finding(
    fake: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    monkeypatch.setattr(doctor_checks, "_WORKER_TIMEOUT_S", 0.5)
    worker = tmp_path / "worker"
    worker.write_text(program)
    worker.chmod(0o755)
    properties = {"bootstrap.servers": fake.bootstrap_servers}
    row = findings(properties, code=1, PYSPARK_PYTHON=str(worker))["spark worker", str(worker)]
    assert (row["status"], says in row["detail"]) == ("failed", True)


def test_python3_of_path_is_the_worker_without_pyspark_python(
    kafka1: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare_python(tmp_path / "python3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    row = findings({"bootstrap.servers": kafka1.bootstrap_servers})["spark worker", "python3 of PATH"]
    assert row["status"] == "warning"
    assert row["remedy"].startswith(f"set PYSPARK_PYTHON to {sys.executable}, or install the wheel")


def test_other_protocol_package_is_found(kafka1: LocalKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_checks, "PROJECT_FOLDER", tmp_path)
    findings_by_check = findings({"bootstrap.servers": kafka1.bootstrap_servers}, code=1)
    assert findings_by_check["python", "import"]["status"] == "failed"


def test_missing_topic_is_reported_and_not_created() -> None:
    with FakeKafka(settings={"auto.create.topics.enable": "true"}) as fake:
        row = findings({"bootstrap.servers": fake.bootstrap_servers}, "--topic", "typo", code=1)["topic", "typo"]
        assert "UNKNOWN_TOPIC_OR_PARTITION" in row["detail"]
        with Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
            assert admin.list_topics() == {}


def test_timeout_limits_each_step(fake: FakeKafka) -> None:
    fake.silence(1)
    properties = {"bootstrap.servers": fake.bootstrap_servers}
    row = findings(properties, "--timeout", "500ms", code=1)["connection", fake.bootstrap_servers]
    assert "did not succeed in 0." in row["detail"]


def test_read_and_write_checks_follow_isolation_level_and_acks(fake: FakeKafka) -> None:
    properties = {"bootstrap.servers": fake.bootstrap_servers}
    with TransactionalProducer({**properties, "transactional.id": "etl"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"value")
        producer.flush()
        options = ("--topic", "orders", "--write", "orders")
        properties |= {"isolation.level": "read_committed", "acks": "0"}
        findings_by_check = findings(properties, *options, code=None)
        producer.abort_transaction()
    assert findings_by_check["read", "orders"]["detail"] == "the topic has no records to read"
    assert findings_by_check["write", "orders"]["detail"] == "sent; with acks=0, brokers do not acknowledge it"


def test_clock_check_without_leader_among_voters_is_skipped(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that removes itself from the voters leads until the removal is committed (KIP-853)."""
    quorum = QuorumDescription(1, 1, 5, voters=(QuorumReplica(2, 5, 1, 1),), observers=())
    monkeypatch.setattr(Admin, "describe_metadata_quorum", lambda admin, timeout_ms: quorum)
    row = findings({"bootstrap.servers": fake.bootstrap_servers})["clock", "controller"]
    assert (row["status"], row["detail"]) == ("skipped", "the brokers do not tell their time")


def test_report_has_versions_properties_and_errors_but_no_secret(fake: FakeKafka) -> None:
    secrets = {
        "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required password="hunter2-a";',
        "ssl.keystore.password": "hunter2-b",
        "sasl.oauthbearer.client.credentials.client.secret": "hunter2-c",
        "schema.registry.basic.auth.user.info": "me:hunter2-d",
        "schema.registry.url": "http://me:hunter2-e@127.0.0.1:1",
    }
    words = ("doctor", *options_of(secrets), "--topic", "a|b", "--report")
    report = invoke_at(fake, *words, code=1, PYSPARK_PYTHON=sys.executable).output
    assert "hunter2" not in report
    assert f"| spark-kafka-source | {protocol.__version__} |" in report
    assert "| schema.registry.url | http://[hidden]@127.0.0.1:1 |" in report
    assert r"| topic | a\|b | failed | " in report
