"""SASL in Spark: with the same options, the JVM connector and this source read the same rows. Also a whole query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_source.lag import lag_of_group
from spark_kafka_source.local_kafka.users import sasl_properties
from tests.protocol.sasl.test_real_broker import token_for
from tests.support.cloud_endpoints import CloudEndpoint, imds_of_alice, imds_properties
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.secured_kafka import PASSWORD, USERS, SecuredKafka
from tests.support.soak import variants

pytestmark = pytest.mark.soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, COPY, GROUP = "sasl", "sasl-copy", "sasl"
WAYS = {
    "PLAIN": sasl_properties("PLAIN", "alice", USERS["alice"]),
    "SCRAM-SHA-256": sasl_properties("SCRAM-SHA-256", "alice", USERS["alice"]),
    "SCRAM-SHA-512": sasl_properties("SCRAM-SHA-512", "alice", USERS["alice"]),
    "a token": token_for("alice"),
}


@pytest.fixture(scope="module")
def topic(secured: SecuredKafka) -> str:
    secured.kafka.create_topic(TOPIC)
    secured.kafka.create_topic(COPY)
    produce(secured.kafka, TOPIC, *(str(number) for number in range(10)))
    return TOPIC


# Mechanisms without TLS: tests/protocol/sasl.
@variants("listener", ["SASL_PLAINTEXT", "SASL_SSL"], "SASL_SSL")
@pytest.mark.parametrize("way", WAYS)
def test_sasl_options_read_same_rows_as_jvm_connector(
    spark: SparkSession, secured: SecuredKafka, topic: str, listener: str, way: str
) -> None:
    values = {f"kafka.{name}": value for name, value in (secured.properties(listener) | WAYS[way]).items()}
    rows = {
        name: spark.read.format(name).options(**values, subscribe=topic).load().orderBy("offset").collect()
        for name in ("kafka", "pykafka-group")
    }
    assert [row.offset for row in rows["kafka"]] == list(range(10))
    assert rows["kafka"] == rows["pykafka-group"]


def test_token_provider_is_called_in_every_process(
    spark: SparkSession, secured: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    properties = {**secured.properties("SASL_SSL"), "sasl.mechanism": "OAUTHBEARER"}
    properties["sasl.jaas.config"] = token_for("alice")["sasl.jaas.config"].partition(" unsecured")[0] + ";"
    properties["sasl.oauthbearer.token.provider"] = "tests.support.token_of_alice:token"
    options = {f"kafka.{name}": value for name, value in properties.items()}
    assert spark.read.format("pykafka-group").options(**options, subscribe=topic).load().count() == 10
    options["kafka.sasl.oauthbearer.token.provider"] = "tests.support.token_of_alice:missing"
    with pytest.raises(Exception, match=r"token_of_alice:missing cannot be imported in this process"):
        spark.read.format("pykafka-group").options(**options, subscribe=topic).load().count()


def test_cloud_identity_gives_driver_and_executors_their_tokens(
    spark: SparkSession, secured: SecuredKafka, topic: str
) -> None:
    values = {name: value for name, value in secured.properties("SASL_SSL").items() if name != "sasl.jaas.config"}
    with CloudEndpoint() as endpoint:
        endpoint.otherwise = imds_of_alice
        options = {f"kafka.{name}": value for name, value in (values | imds_properties(endpoint)).items()}
        rows = spark.read.format("pykafka-group").options(**options, subscribe=topic).load()
        assert rows.count() == 10
        assert len(endpoint.requests) >= 2
        plan = rows._jdf.queryExecution().toString()  # type: ignore[operator]
        assert [token for token in tokens_of(endpoint) if token in plan] == []


def tokens_of(endpoint: CloudEndpoint) -> list[str]:
    """Return the tokens that the endpoint has given, and the part that all have."""
    _, _, body = imds_of_alice(endpoint.requests[0])
    return [json.loads(body)["access_token"].split(".")[0]]


def test_sasl_example_of_docs_reads_writes_and_commits(
    spark: SparkSession, secured: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    properties = secured.properties("SASL_SSL")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    places = {
        "broker-1.example.com:9093": properties["bootstrap.servers"],
        "/etc/kafka/ca.pem": properties["ssl.truststore.location"],
        "orders-etl": "carol",
        "/run/secrets/kafka": str(tmp_path),
    }
    names: dict[str, Any] = {}
    exec(block("security.md", "${dir:/run/secrets/kafka:").with_names(places), names)
    options = names["options"]
    source = spark.readStream.format("pykafka-group").options(**options, subscribe=topic, startingOffsets="earliest")
    rows = source.option("kafka.group.id", GROUP).load()
    writer = rows.select("value").writeStream.format("pykafka-group").options(**options, topic=COPY)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.read.format("pykafka-group").options(**options, subscribe=COPY).load().count() == 10
    assert lag_of_group(options, GROUP).offsets_behind == 0
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if PASSWORD in path.read_text(errors="replace")]
