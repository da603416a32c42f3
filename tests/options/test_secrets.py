"""Values of options that may be secrets are in no message, log record, value or pickle."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator

import pytest
from pyspark import cloudpickle

from protocol.errors import ConfigurationError
from protocol.settings.property_kinds import SECRET
from protocol.settings.secret import Secret
from spark_kafka_source.lag.seconds import configs
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options, row_columns
from spark_kafka_source.sink.foreach_batch import foreach_batch_writer

SOURCE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
SINK = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}
READERS: dict[str, tuple[dict[str, str], Callable[[dict[str, str]], object]]] = {
    "stream": (SOURCE, lambda options: parse_source_options(options, streaming=True)),
    "batch": (SOURCE, lambda options: parse_source_options(options, streaming=False)),
    "sink": (SINK, parse_sink_options),
    "foreachBatch": (SINK, foreach_batch_writer),
    "lag": (SOURCE, configs),
    "schema": (SOURCE, row_columns),
}

# Names of Kafka's password properties, then of other clients, then misspellings.
PROPERTIES = (
    "sasl.jaas.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
    *("sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.pem", "sasl_plain_password", "password"),
    *("sasl.jaas.confg", "sasl-password", "saslpassword", "ssl_key_password"),
)
OTHERS = ("databricks.serviceCredential", "spark.kafka.clusters.a.sasl.token", "apiToken", "option.password")
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="hunter2";'


def everything_of(error: BaseException) -> Iterator[str]:
    """Return all that a handler, a log or another process could show of the error."""
    yield "".join(traceback.format_exception(error))
    yield repr(pickle.dumps(error))
    while error is not None:
        yield f"{error} {error!r} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("name", [*(f"kafka.{name}" for name in PROPERTIES), *PROPERTIES, *OTHERS])
def test_secret_value_is_in_no_output(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    for text in (JAAS, "hunter2", "me:hunter2@broker", "hunter2\n"):
        for measure, (options, read) in READERS.items():
            settings = {**options, name: text}
            try:
                shown.append(repr(read(settings)))
                # foreachBatch creates a new query for each batch, from all of its options.
                shown.append("" if measure == "foreachBatch" else repr(cloudpickle.dumps(read(settings))))
            except ConfigurationError as error:
                shown += everything_of(error)
    shown += [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert not [line for line in shown if "hunter2" in line]


def test_secret_is_kept_unstripped_and_is_not_shown_if_invalid() -> None:
    assert SECRET.read("kafka.sasl.password", " hunter2 ") == Secret(" hunter2 ")
    with pytest.raises(ConfigurationError, match=r"sasl.password has a wrong .* \(empty\); allowed: any text"):
        SECRET.read("kafka.sasl.password", "")
    # Undecodable bytes of the environment become such characters in Python.
    with pytest.raises(ConfigurationError, match=r"which is not shown \(not valid UTF-8 text\)") as refused:
        SECRET.read("kafka.sasl.password", JAAS + "\udcff")
    assert "hunter2" not in "".join(everything_of(refused.value))


@pytest.mark.parametrize("name", ["bootstrap.servers", "request.timeout.ms", "security.protocol", "ssl.protocol"])
def test_resolved_reference_is_not_shown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PASSWORD_OF_A_TEST", "hunter2")
    options = {**SOURCE, "kafka.security.protocol": "SSL", f"kafka.{name}": "${env:PASSWORD_OF_A_TEST}"}
    with pytest.raises(ConfigurationError, match=rf"kafka.{name} has a wrong value, which is not shown") as refused:
        parse_source_options(options, streaming=True)
    assert "hunter2" not in "".join(everything_of(refused.value))
