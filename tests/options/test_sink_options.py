"""Sink options: Spark's dict is parsed into one frozen object, or the error names the user's option."""

from __future__ import annotations

import logging

import pytest

from tests.options.parsed import sink, sink_refusal


def test_sink_requires_acknowledgements_by_default() -> None:
    options = sink(topic=" orders ")
    assert options.topic == "orders"
    assert options.delivery_guarantee == "at-least-once"
    assert (options.producer.acks, options.producer.enable_idempotence) == (-1, True)


@pytest.mark.parametrize(
    ("java", "name"), [("internals.DefaultPartitioner", "murmur2"), ("RoundRobinPartitioner", "round_robin")]
)
def test_partitioner_may_be_a_class_of_java(java: str, name: str) -> None:
    assert sink(**{"kafka.partitioner.class": f"org.apache.kafka.clients.producer.{java}"}).producer.partitioner == name


def test_delivery_guarantee_none_means_acks_0(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options = sink(deliveryGuarantee="none")
    assert (options.producer.acks, options.producer.enable_idempotence) == (0, False)
    assert not caplog.records


def test_acks_alone_determines_the_delivery_guarantee(caplog: pytest.LogCaptureFixture) -> None:
    assert sink(kafka_acks="0").delivery_guarantee == "none"
    with caplog.at_level(logging.WARNING):
        assert sink(kafka_acks="1").producer.acks == 1
    assert "records that only the leader has are lost if it fails" in caplog.text


EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "p"}


def test_transaction_timeout_defaults_to_15_minutes(caplog: pytest.LogCaptureFixture) -> None:
    assert sink(**EXACTLY_ONCE).producer.transaction_timeout_ms == 900_000
    assert sink(**EXACTLY_ONCE, kafka_transaction_timeout_ms="5000").producer.transaction_timeout_ms == 5_000
    with caplog.at_level(logging.WARNING):
        sink(transactionalIdPrefix="p", kafka_transaction_timeout_ms="5000")
    for name in ("transactionalIdPrefix", "kafka.transaction.timeout.ms"):
        assert f"{name} has no effect without deliveryGuarantee exactly-once" in caplog.text


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (
            {"valueSubjectNameStrategy": "RecordNameStrategy"},
            "valueSubjectNameStrategy has no effect without valueTypes",
        ),
        (
            {"valueSubject": "a,b", "valueMessageName": "M", "valueFormat": "confluent-protobuf"},
            "valueMessageName has no effect: values have several types",
        ),
    ],
)
def test_option_without_effect_on_types_is_a_warning(
    options: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = {"valueFormat": "confluent-avro", "schema_registry_url": "http://registry:8081"}
    with caplog.at_level(logging.WARNING):
        sink(topic="orders", **registry | options)
    assert warning in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deliveryGuarantee": "exactly-once"}, "there is no transactionalIdPrefix; set one"),
        ({**EXACTLY_ONCE, "kafka.acks": "1"}, "deliveryGuarantee is exactly-once, but kafka.acks is 1"),
        ({**EXACTLY_ONCE, "kafka.enable.idempotence": "false"}, "exactly-once, but idempotence is off"),
        ({**EXACTLY_ONCE, "asyncProgressTrackingEnabled": " True"}, "but asyncProgressTrackingEnabled is true: after"),
        ({**EXACTLY_ONCE, "transactionalIdPrefix": "a b"}, "transactionalIdPrefix is 'a b'"),
        ({**EXACTLY_ONCE, "transactionalIdPrefix": "a" * 201}, "at most 200"),
        ({"deliveryGuarantee": "some"}, "allowed: at-least-once, exactly-once, none"),
        ({"deliveryGuarantee": "at-least-once", "kafka.acks": "1"}, "but kafka.acks is 1"),
        ({"deliveryGuarantee": "none", "kafka.acks": "all"}, "deliveryGuarantee is none, but kafka.acks is -1"),
        ({"deliveryGuarantee": "none", "kafka.enable.idempotence": "true"}, "kafka.acks is 0, not all"),
        ({"topic": "a b"}, "topic is 'a b' ('a b' is no topic name"),
        ({"topic": ""}, "topic is ''"),
        ({"kafka.transactional.id": "x"}, "use deliveryGuarantee=exactly-once and transactionalIdPrefix"),
        ({"valueUnionNames": "types"}, "is an option of streaming reads and batch reads, not of writes"),
    ],
)
def test_unsupported_sink_options_are_refused(options: dict[str, str], message: str) -> None:
    assert message in sink_refusal(options)
