"""TLS in Spark: with the same options, the JVM connector and this source read the same rows."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from pyspark.errors import PythonException, StreamingQueryException

from spark_kafka_source.local_kafka.jars import find_java
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.secured_kafka import SecuredKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "tls"
PASSWORD, KEY_PASSWORD = "of the store", "of the key"
Options = dict[str, str]


@pytest.fixture(scope="module")
def topic(secured: SecuredKafka) -> str:
    secured.kafka.create_topic(TOPIC)
    produce(secured.kafka, TOPIC, *(str(number) for number in range(10)))
    return TOPIC


class Stores:
    """One CA, and one key with its certificate, in each of Java's store formats."""

    def __init__(self, secured: SecuredKafka, folder: Path) -> None:
        self.ca = Path(secured.properties("SSL")["ssl.truststore.location"])
        self.mine = secured.client_certificate()
        self._folder = folder
        key = serialization.load_pem_private_key(self.mine.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(self.mine.read_bytes())
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        self.key_p12 = self._written(
            "key.p12",
            pkcs12.serialize_key_and_certificates(b"me", key, certificate, None, encryption),  # type: ignore[arg-type]
        )
        # The only key encryption that Java before 19 reads.
        encrypt = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", f"pass:{PASSWORD}"]
        printed = subprocess.run([*encrypt, "-in", self.mine], check=True, capture_output=True, text=True)
        self.encrypted_key = printed.stdout
        self.trust_jks = self._keytool_trust("JKS")
        self.trust_p12 = self._keytool_trust("PKCS12")

    @property
    def key_jks(self) -> Path:
        """Create a JKS store whose key has another password than the store."""
        store = self._folder / "key.jks"
        if not store.exists():
            source = ["-srckeystore", str(self.key_p12), "-srcstorepass", PASSWORD]
            keytool("-importkeystore", *source, "-destkeystore", str(store), "-deststoretype", "JKS", *new_password())
            changed = ["-storepass", PASSWORD, "-keypass", PASSWORD, "-new", KEY_PASSWORD]
            keytool("-keypasswd", "-keystore", str(store), "-alias", "me", *changed)
        return store

    def _written(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        return path

    def _keytool_trust(self, kind: str) -> Path:
        store = self._folder / f"trust.{kind}"
        inputs = ["-storetype", kind, "-storepass", PASSWORD]
        keytool("-importcert", "-noprompt", "-alias", "ca", "-file", str(self.ca), "-keystore", str(store), *inputs)
        return store


def new_password() -> list[str]:
    return ["-deststorepass", PASSWORD, "-destkeypass", PASSWORD]


def keytool(*arguments: str) -> None:
    subprocess.run([str(Path(find_java()).with_name("keytool")), *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def stores(secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(secured, tmp_path_factory.mktemp("stores"))


def truststore(path: Path, kind: str | None, password: str | None = PASSWORD) -> Options:
    properties = {
        "ssl.truststore.location": str(path),
        "ssl.truststore.type": kind,
        "ssl.truststore.password": password,
    }
    return {name: value for name, value in properties.items() if value is not None}


def keystore(path: Path, kind: str, key_password: str | None = None) -> Options:
    properties = {"ssl.keystore.location": str(path), "ssl.keystore.type": kind, "ssl.keystore.password": PASSWORD}
    return {**properties, **({} if key_password is None else {"ssl.key.password": key_password})}


def pem(stores: Stores) -> Options:
    return truststore(stores.ca, "PEM", None)


def inline(stores: Stores) -> Options:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": stores.ca.read_text()}


def inline_key(stores: Stores) -> Options:
    properties = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificates(stores.mine.read_text())}
    key = {"ssl.keystore.key": stores.encrypted_key, "ssl.key.password": PASSWORD}
    return {**inline(stores), **properties, **key}


def certificates(text: str) -> str:
    return text[text.index("-----BEGIN CERTIFICATE") :]


# tests/protocol/security reads these stores in more forms.
VARIANTS: dict[str, tuple[str, Callable[[Stores], Options]]] = {
    "PEM": ("SSL", pem),
    "JKS": ("SSL", lambda stores: truststore(stores.trust_jks, "JKS")),
    "PKCS12": ("SSL", lambda stores: truststore(stores.trust_p12, "PKCS12")),
    "a key in JKS": (
        "MUTUAL",
        lambda stores: {**truststore(stores.trust_jks, "JKS"), **keystore(stores.key_jks, "JKS", KEY_PASSWORD)},
    ),
    "an encrypted key, inline": ("MUTUAL", inline_key),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_tls_options_read_same_rows_as_jvm_connector(
    spark: SparkSession, secured: SecuredKafka, stores: Stores, topic: str, variant: str
) -> None:
    listener, inputs = VARIANTS[variant]
    servers = secured.kafka.bootstrap_servers_of(listener)
    properties = {"bootstrap.servers": servers, "security.protocol": "SSL", **inputs(stores)}
    options = {**{f"kafka.{name}": value for name, value in properties.items()}, "subscribe": topic}
    ours, expected = (
        sorted(spark.read.format(name).options(**options).load().collect()) for name in ("pykafka-group", "kafka")
    )
    assert ours == expected
    assert [row.value for row in ours] == [str(number).encode() for number in range(10)]


def test_query_continues_with_replaced_certificates(spark: SparkSession, secured: SecuredKafka, tmp_path: Path) -> None:
    topic = "replaced"
    secured.kafka.create_topic(topic)
    store = tmp_path / "mine.pem"
    store.write_bytes(secured.client_certificate().read_bytes())
    each_time_anew = {"connections.max.idle.ms": "1"}
    properties = {**secured.properties("MUTUAL"), "ssl.keystore.location": str(store), **each_time_anew}
    options = {**{f"kafka.{name}": value for name, value in properties.items()}, "subscribe": topic}
    rows = spark.readStream.format("pykafka-group").options(startingOffsets="latest", **options).load()
    query = rows.writeStream.format("memory").queryName("replaced").option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    store.write_bytes(secured.client_certificate().read_bytes())
    produce(secured.kafka, topic, "after")
    query.processAllAvailable()
    assert [row.value for row in spark.table("replaced").collect()] == [b"after"]
    store.write_bytes(secured.authority.issue("stranger").read_bytes())
    with pytest.raises(StreamingQueryException, match="the broker refused our certificate"):
        query.awaitTermination(60)


def test_untrusted_certificate_fails_task_with_remedy(spark: SparkSession, secured: SecuredKafka, topic: str) -> None:
    properties = {**secured.properties("SSL"), "ssl.truststore.location": str(secured.authority.certificate)}
    options = {f"kafka.{name}": value for name, value in properties.items()}
    rows = spark.range(3).selectExpr("cast(id as string) as value")
    with pytest.raises(PythonException, match=r"untrusted CA .* Set kafka.ssl.truststore.location"):
        rows.write.format("pykafka-group").options(topic=topic, **options).mode("append").save()


def test_tls_example_of_docs_reads_rows(spark: SparkSession, secured: SecuredKafka, topic: str, tmp_path: Path) -> None:
    properties = secured.properties("SSL")
    places = {
        "broker-1.example.com:9093": properties["bootstrap.servers"],
        "/etc/kafka/ca.pem": properties["ssl.truststore.location"],
        '"orders"': f'"{topic}"',
        ".load()": '.option("startingOffsets", "earliest").load()',
    }
    names: dict[str, Any] = {"spark": spark}
    exec(block("security.md", "readStream").with_names(places), names)
    query = names["rows"].writeStream.format("memory").queryName("over_tls").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert spark.table("over_tls").count() == 10
