"""`pykafka configs`, `acls`, `users`, `quotas` and `cluster`, read back by Kafka's tools and librdkafka."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import tool_class
from tests.cli.runs import invoke_at, rows, run_at_kafka1
from tests.conftest import TopicFactory
from tests.support.secured_kafka import SecuredKafka
from tests.support.wait_until import wait_until

SECRET = "geheim-2b7"


run = run_at_kafka1()


def tool(kafka: LocalKafka, name: str, *arguments: str) -> str:
    name = tool_class(kafka.cluster_config, f"org.apache.kafka.tools.{name}", f"kafka.admin.{name}")
    return kafka.run_tool(name, "--bootstrap-server", kafka.bootstrap_servers, *arguments)


def test_configs_set_and_delete_change_only_named_settings(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(1, config={"retention.ms": "1000", "segment.bytes": "1048576"})
    run("configs", "set", "topic", name, "retention.ms=2000", "--append", "cleanup.policy=compact")
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap_servers})

    def seen() -> dict[str, Any]:
        (entries,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]).values()
        return dict(entries.result(10))

    def values() -> list[str]:
        result = seen()
        return [result[name].value for name in ("retention.ms", "segment.bytes", "cleanup.policy")]

    wait_until(lambda: values() == ["2000", "1048576", "delete,compact"], values)
    run("configs", "set", "topic", name, "--subtract", "cleanup.policy=delete")
    run("configs", "delete", "topic", name, "retention.ms", "--yes")
    wait_until(lambda: values() == ["604800000", "1048576", "compact"], values)
    assert seen()["retention.ms"].is_default
    described = rows(run("configs", "describe", "topic", name, "-o", "json"))
    assert {(row["setting"], row["value"]) for row in described} >= {
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1048576"),
    }
    assert "retention.ms" not in {row["setting"] for row in described}
    everything = rows(run("configs", "describe", "topic", name, "--all", "-o", "json"))
    assert len(everything) == len(seen())


def test_configs_dry_run_checks_without_change(run: Any, topic1: TopicFactory) -> None:
    name = topic1(1)
    run("configs", "set", "topic", name, "max.message.bytes=5", "--dry-run")
    (row,) = rows(run("configs", "describe", "topic", name, "--setting", "max.message.bytes", "-o", "json"))
    assert (row["value"], row["source"]) == ("1048588", "DEFAULT_CONFIG")
    assert "INVALID_CONFIG" in run("configs", "set", "topic", name, "max.message.bytes=x", "--dry-run", code=1).stderr
    assert "Aborted" in run("configs", "delete", "topic", name, "max.message.bytes", code=1).stderr
    run("configs", "set", "topic", name, code=2)


def test_configs_of_broker_are_listed_and_described(run: Any, kafka1: LocalKafka) -> None:
    run("configs", "set", "broker", "1", "log.cleaner.backoff.ms=600")

    def seen() -> set[tuple[str, str, str]]:
        entries = rows(run("configs", "describe", "broker", "1", "-o", "json"))
        return {(row["setting"], row["value"], row["source"]) for row in entries}

    try:
        wait_until(lambda: ("log.cleaner.backoff.ms", "600", "DYNAMIC_BROKER_CONFIG") in seen(), seen)
        shown = tool(kafka1, "ConfigCommand", "--describe", "--entity-type", "brokers", "--entity-name", "1")
        assert "log.cleaner.backoff.ms=600" in shown
    finally:
        run("configs", "delete", "broker", "1", "log.cleaner.backoff.ms", "--yes")
    assert rows(run("configs", "list", "--type", "broker", "-o", "json")) == [{"type": "broker", "name": "1"}]


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("x.password=geheim-2b7", 2, "env:VARIABLE or file:PATH"),
        ("x.password", 2, "no terminal"),
        ("x.password=env:NOT_SET", 2, "NOT_SET"),
        ("x.password=file:/no/such/file", 2, "No such file"),
        ("log.retention.ms=env:PYKAFKA_TEST_SECRET", 1, "INVALID_"),
    ],
)
def test_secret_is_never_printed(run: Any, source: str, code: int, says: str) -> None:
    result = run("configs", "set", "broker", "1", "--secret", source, code=code, PYKAFKA_TEST_SECRET="12x")
    assert says in " ".join(result.stderr.split())
    assert SECRET not in result.output


def test_users_are_set_listed_and_deleted(run: Any, kafka1: LocalKafka, tmp_path: Path) -> None:
    user = "cli-user"
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    output = [
        run("users", "set", user, "--password-from", f"file:{file}"),
        run("users", "set", user, "--mechanism", "scram-sha-256", "--password-from", "env:P", P=SECRET),
        run("users", "set", user, "--iterations", "4096", "--password-from", "file:-", typed=SECRET),
    ]
    assert SECRET not in "".join(line.output for line in output)

    def seen() -> set[tuple[str, int]]:
        entries = rows(run("users", "list", "-o", "json"))
        return {(row["mechanism"], row["iterations"]) for row in entries if row["user"] == user}

    wait_until(lambda: seen() == {("SCRAM-SHA-256", 8192), ("SCRAM-SHA-512", 4096)}, seen)
    assert len(rows(run("users", "list", user, "-o", "json"))) == 2
    shown = tool(kafka1, "ConfigCommand", "--describe", "--entity-type", "users", "--entity-name", user)
    assert "SCRAM-SHA-512=iterations=4096" in shown
    assert "SCRAM-SHA-256=iterations=8192" in shown
    assert "Aborted" in run("users", "delete", user, code=1).stderr
    run("users", "delete", user, "--mechanism", "SCRAM-SHA-256", "--yes")
    wait_until(lambda: seen() == {("SCRAM-SHA-512", 4096)}, seen)
    run("users", "delete", user, "--yes")
    wait_until(lambda: not seen(), seen)
    assert "RESOURCE_NOT_FOUND" in run("users", "delete", user, "--yes", code=1).stderr


def test_user_of_command_can_log_in(secured: SecuredKafka) -> None:
    from confluent_kafka import Consumer

    run = partial(invoke_at, secured.kafka, "users")
    run("set", "cli-login", "--password-from", "env:P", P=SECRET)
    wait_until(lambda: "cli-login" in run("list").stdout)
    properties = {
        "bootstrap.servers": secured.kafka.client_properties("SASL_PLAINTEXT")["bootstrap.servers"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "group.id": "unused",
        "sasl.username": "cli-login",
        "sasl.password": SECRET,
        "log_level": 0,
    }
    consumer = Consumer(properties)
    assert consumer.list_topics(timeout=30).brokers
    consumer.close()
    run("delete", "cli-login", "--yes")


def test_quotas_are_set_listed_and_deleted(run: Any, kafka1: LocalKafka) -> None:
    entity = ("--user", "cli-quota", "--client-id-default")
    run("quotas", "set", *entity, "producer_byte_rate=1500000", "request_percentage=50")
    named = "client-id (default), user cli-quota"

    def seen() -> list[tuple[str, str, float]]:
        entries = rows(run("quotas", "list", "-o", "json"))
        return [tuple(row.values()) for row in entries if "cli-quota" in row["entity"]]

    wait_until(lambda: len(seen()) == 2)
    shown = tool(
        *(kafka1, "ConfigCommand", "--describe", "--entity-type", "users"),
        *("--entity-name", "cli-quota", "--entity-type", "clients", "--entity-default"),
    )
    assert "producer_byte_rate=1500000" in shown
    assert seen() == [(named, "producer_byte_rate", 1_500_000.0), (named, "request_percentage", 50.0)]
    assert rows(run("quotas", "list", "--user", "cli-other", "-o", "json")) == []
    run("quotas", "delete", *entity, "producer_byte_rate", "--yes")
    wait_until(lambda: len(seen()) == 1)
    assert "no quota producer_byte_rate" in run("quotas", "delete", *entity, "producer_byte_rate", code=1).stderr
    assert "Aborted" in run("quotas", "delete", *entity, code=1).stderr
    run("quotas", "delete", *entity, "--yes")
    wait_until(lambda: seen() == [])
    run("quotas", "set", "producer_byte_rate=1", code=2)
    run("quotas", "set", "--user", "a", "--user-default", "producer_byte_rate=1", code=2)
    run("quotas", "set", "--user", "a", "producer_byte_rate=fast", code=2)


def test_acls_are_created_listed_and_deleted(secured: SecuredKafka) -> None:
    kafka, principal = secured.kafka, "User:cli-acl"
    run = partial(invoke_at, kafka, "acls")

    def seen(*arguments: str) -> set[tuple[str, ...]]:
        entries = rows(run("list", "--principal", principal, *arguments, "-o", "json"))
        return {tuple(row[name] for name in ("resource_type", "resource", "operation", "pattern")) for row in entries}

    run("create", "--principal", principal, "--consumer", "--topic", "cli-orders", "--group", "cli-etl")
    run("create", "--principal", principal, "--operation", "describe", "--topic", "cli-", "--prefixed", "--cluster")
    run("create", "--principal", principal, "--operation", "write", "--topic", "*", "--deny", "--host", "10.0.0.1")
    consumer = {
        ("topic", "cli-orders", "read", "literal"),
        ("topic", "cli-orders", "describe", "literal"),
        ("group", "cli-etl", "read", "literal"),
    }
    further = {("topic", "cli-", "describe", "prefixed"), ("cluster", "kafka-cluster", "describe", "literal")}
    denied = {("topic", "*", "write", "literal")}
    wait_until(lambda: seen() == consumer | further | denied)
    shown = tool(kafka, "AclCommand", "--list", "--principal", principal)
    assert "operation=READ, permissionType=ALLOW" in shown
    assert "host=10.0.0.1, operation=WRITE, permissionType=DENY" in shown
    assert seen("--topic", "cli-orders") == {acl for acl in consumer if acl[0] == "topic"}
    assert seen("--topic", "cli-orders", "--pattern", "match") == {
        acl for acl in consumer | further | denied if acl[0] == "topic"
    }
    assert seen("--permission", "deny") == denied
    result = run("delete", "--principal", principal, "--group", "cli-etl", code=1)
    assert ("cli-etl" in result.stdout, "Aborted" in result.stderr) == (True, True)
    run("delete", "--principal", principal, "--topic", "cli-orders", "--operation", "describe", "--yes")
    wait_until(lambda: seen() == (consumer | further | denied) - {("topic", "cli-orders", "describe", "literal")})
    run("delete", "--principal", principal, "--yes")
    wait_until(lambda: seen() == set())
    assert rows(run("delete", "--principal", principal, "--yes", "-o", "json")) == []
    run("delete", "--yes", code=2)
    run("create", "--principal", principal, "--topic", "t", code=2)


def test_acls_without_authorizer_are_one_error(run: Any) -> None:
    assert "SECURITY_DISABLED" in run("acls", "list", code=1).stderr


def test_cluster_commands_agree_with_kafkas_tools(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(2)
    (broker,) = rows(run("cluster", "describe", "--fenced", "-o", "json"))
    port = int(kafka1.bootstrap_servers.rpartition(":")[2])
    assert (broker["broker"], broker["host"], broker["port"], broker["fenced"]) == (1, "127.0.0.1", port, False)
    listed = AdminClient({"bootstrap.servers": kafka1.bootstrap_servers}).list_topics(timeout=10)
    assert broker["cluster_id"] == listed.cluster_id
    features = {row["feature"]: row["level"] for row in rows(run("cluster", "features", "-o", "json"))}
    line = next(line for line in tool(kafka1, "FeatureCommand", "describe").splitlines() if "group.version" in line)
    assert f"FinalizedVersionLevel: {features['group.version']}" in line
    (leader,) = rows(run("cluster", "quorum", "-o", "json"))
    assert (leader["replica"], leader["role"], leader["lag"]) == (1, "leader", 0)

    def replicas() -> list[dict[str, Any]]:
        return rows(run("cluster", "log-dirs", "--replicas", "-o", "json"))

    assert {row["partition"] for row in replicas() if row["topic"] == name} == {0, 1}
    (directory,) = rows(run("cluster", "log-dirs", "-o", "json"))
    assert directory["error"] is None
    # The broker deletes replicas of earlier tests meanwhile.
    wait_until(lambda: rows(run("cluster", "log-dirs", "-o", "json"))[0]["replicas"] == len(replicas()), every_s=0.2)


def test_set_features_without_execute_changes_nothing(run: Any) -> None:
    level = {row["feature"]: row["level"] for row in rows(run("cluster", "features", "-o", "json"))}["group.version"]
    output = run("cluster", "set-features", f"group.version={level}")
    assert "Nothing was changed" in output.stderr
    assert "INVALID_UPDATE_VERSION" in run("cluster", "set-features", "group.version=99", code=1).stderr
    run("cluster", "set-features", "group.version=x", code=2)
