"""Kafka's properties become frozen values, or an error with the property, the reason and the remedy."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator

import pytest

from protocol.base import once
from protocol.config import ClientConfig, ConsumerConfig, ProducerConfig, parse_client, parse_consumer, parse_producer
from protocol.errors import ConfigurationError
from protocol.properties import PROPERTIES
from protocol.sasl.config import SaslConfig
from protocol.security.tls_config import TLSConfig
from protocol.settings.property_kinds import Effect, Property, Role

BROKERS = {"bootstrap.servers": "localhost:9092"}
CLASSIC, KIP_848 = ({"group.id": "g", "group.protocol": protocol} for protocol in ("classic", "consumer"))
NOT_ADAPTIVE = {"partitioner.adaptive.partitioning.enable": "false"}
HAS_NO_EFFECT = "timeout.ms has no effect: partitioner.adaptive.partitioning.enable"
LZ4 = {"compression.type": "lz4", "compression.lz4.level": "9"}
PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "hunter2"}
Parse = Callable[..., object]
PARSERS: dict[Role, Parse] = {Role.CLIENT: parse_client, Role.CONSUMER: parse_consumer, Role.PRODUCER: parse_producer}


@pytest.fixture(autouse=True)
def _warnings_are_logged_again(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING)
    once.reset()
    yield
    once.reset()


def refusal(parse: Parse, options: dict[str, object]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        parse(options)
    return str(raised.value)


# -- values ---------------------------------------------------------------------------------------


def test_bootstrap_servers_alone_give_the_defaults() -> None:
    assert parse_client(BROKERS) == ClientConfig((("localhost", 9092),))
    assert parse_consumer(BROKERS) == ConsumerConfig()
    assert parse_producer(BROKERS) == ProducerConfig()


def test_values_may_be_text_numbers_or_booleans() -> None:
    config = parse_consumer({"fetch.min.bytes": " 7 ", "fetch.max.wait.ms": 9, "check.crcs": False, "group.id": "g"})
    assert (config.fetch_min_bytes, config.fetch_max_wait_ms, config.check_crcs, config.group_id) == (7, 9, False, "g")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a:1", (("a", 1),)),
        (" a:1 , b.example.com:65535,", (("a", 1), ("b.example.com", 65535))),
        ("[::1]:9092", (("::1", 9092),)),
        ("PLAINTEXT://a:1,a:1", (("a", 1),)),
        ("http://a:1,EXTERNAL-2://b:2,https://c:3", (("a", 1), ("b", 2), ("c", 3))),
        ("SSL://a:1,SASL_PLAINTEXT://b:2", (("a", 1), ("b", 2))),
    ],
)
def test_bootstrap_servers_are_hosts_and_ports_and_a_scheme_has_no_effect_as_in_java(
    text: str, pairs: tuple[tuple[str, int], ...]
) -> None:
    config = parse_client({"bootstrap.servers": text})
    assert (config.bootstrap_servers, config.security_protocol) == (pairs, "PLAINTEXT")


@pytest.mark.parametrize("text", ["", ",", "localhost", "localhost:", ":9092", "a:0", "a:65536", "a:b", "http://a/:1"])
def test_invalid_bootstrap_address_is_refused(text: str) -> None:
    message = refusal(parse_client, {"bootstrap.servers": text})
    assert f"bootstrap.servers is {text!r}" in message
    assert "host:port[,host:port...]" in message


@pytest.mark.parametrize("host", ["a..b", "x" * 64, f"broker.{'y' * 64}.example"])
def test_invalid_host_name_is_refused(host: str) -> None:
    assert f"{host} cannot be a host name" in refusal(parse_client, {"bootstrap.servers": f"a:1,{host}:9092"})


def test_bootstrap_servers_are_required() -> None:
    assert "bootstrap.servers is missing" in refusal(parse_client, {})
    with pytest.raises(ConfigurationError, match="empty"):
        ClientConfig(())


@pytest.mark.parametrize(
    ("parse", "name", "value", "allowed"),
    [
        (parse_client, "request.timeout.ms", "30s", "1 to 2147483647"),
        (parse_client, "request.timeout.ms", "0", "1 to 2147483647"),
        (parse_client, "request.timeout.ms", "2147483648", "1 to 2147483647"),
        (parse_client, "request.timeout.ms", "", "1 to 2147483647"),
        (parse_client, "client.id", " ", "any text but the empty one"),
        (parse_client, "client.id", "a\ud800", "any text but the empty one"),
        (parse_client, "connections.max.idle.ms", "-2", "1 to 2147483647 or -1"),
        (parse_consumer, "check.crcs", "yes", "true, false"),
        (parse_consumer, "isolation.level", "serializable", "read_uncommitted, read_committed"),
        (parse_consumer, "auto.offset.reset", "by_duration:PT1H", "earliest, latest, none"),
        (parse_consumer, "group.protocol", "share", "none, classic, consumer"),
        (parse_consumer, "fetch.min.bytes", "1.5", "0 to 2147483647"),
        (parse_producer, "acks", "2", "all, -1, 1, 0"),
        (parse_producer, "compression.type", "brotli", "none, gzip, snappy, lz4, zstd"),
        (parse_producer, "compression.gzip.level", "10", "1 to 9 or -1"),
        (parse_producer, "partitioner.class", "com.example.Mine", "murmur2"),
    ],
)
def test_invalid_value_is_refused_with_name_value_and_allowed_values(
    parse: Parse, name: str, value: str, allowed: str
) -> None:
    message = refusal(parse, {**BROKERS, name: value})
    assert message.startswith(f"{name} is {value!r}")
    assert f"allowed: {allowed}" in message


@pytest.mark.parametrize(("text", "is_too_long"), [("x" * 32_767, False), ("x" * 32_766 + "é", True)])
def test_text_of_requests_has_at_most_32767_bytes(text: str, is_too_long: bool) -> None:
    """Longer text does not fit into a STRING of Kafka's protocol."""
    if is_too_long:
        assert "more than 32767 bytes" in refusal(parse_consumer, {**BROKERS, "group.id": text})
    else:
        assert parse_consumer({**BROKERS, "group.id": text}).group_id == text


def test_configurations_are_picklable_and_hashable() -> None:
    configs = (parse_client(BROKERS), parse_consumer({"group.id": "g"}), parse_producer({"acks": "1"}))
    assert pickle.loads(pickle.dumps(configs)) == configs
    assert len(set(configs)) == 3


# -- the property table ---------------------------------------------------------------------------


def test_applied_properties_and_config_fields_correspond() -> None:
    further = {"gzip_level", "lz4_level", "zstd_level", "librdkafka_partitioner"}
    for role, config in ((Role.CLIENT, ClientConfig), (Role.CONSUMER, ConsumerConfig), (Role.PRODUCER, ProducerConfig)):
        fields = {row.field for row in PROPERTIES if row.role is role and row.effect is Effect.APPLIES} - further
        tls = {f"ssl_{name}" for name in TLSConfig.__dataclass_fields__} if role is Role.CLIENT else set()
        sasl = {f"sasl_{name}" for name in SaslConfig.__dataclass_fields__} if role is Role.CLIENT else set()
        assert fields == set(config.__dataclass_fields__) - {"compression_level", "tls", "sasl"} | tls | sasl


def test_property_names_are_unique() -> None:
    assert len({row.name for row in PROPERTIES}) == len(PROPERTIES)


@pytest.mark.parametrize("row", [row for row in PROPERTIES if row.effect is Effect.NO_EFFECT], ids=lambda row: row.name)
def test_property_without_effect_is_accepted_with_one_warning(row: Property, caplog: pytest.LogCaptureFixture) -> None:
    parse = PARSERS[row.role]
    parse({**BROKERS, row.name: "x"})
    parse({**BROKERS, row.name: "x"})
    assert [record.getMessage() for record in caplog.records] == [f"{row.name} has no effect: {row.doc}"]


@pytest.mark.parametrize(
    "row", [row for row in PROPERTIES if row.effect in (Effect.FORBIDDEN, Effect.NOT_YET)], ids=lambda row: row.name
)
def test_forbidden_or_unsupported_property_is_refused(row: Property) -> None:
    parse = next(parse for role, parse in PARSERS.items() if role & row.role)
    message = refusal(parse, {**BROKERS, row.name: "value-of-it"})
    assert message == f"{row.name} is {row.effect.value}: {row.doc}."
    assert "value-of-it" not in message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("metadata.max.idle", "; did you mean metadata.max.idle.ms?"),
        ("fetch.min.wait.ms", ""),  # not fetch.max.wait.ms
        ("colour", ""),
        ("queue.buffering.max.messages", ""),
    ],
)
def test_unknown_property_without_effect_is_a_warning_that_names_a_similar_one(
    name: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    for parse in PARSERS.values():
        parse({**BROKERS, name: "secret"})
    assert caplog.messages == [f"{name} has no effect: it is not a known Kafka property{hint}"]


@pytest.mark.parametrize(
    ("name", "role", "meant"),
    [
        ("group.ids", Role.CONSUMER, "group.id"),
        ("isolation.levle", Role.CONSUMER, "isolation.level"),
        ("Acks", Role.PRODUCER, "acks"),
        ("bootstrap.server", Role.CLIENT, "bootstrap.servers"),
    ],
)
def test_misspelled_property_is_refused_where_it_would_apply(
    name: str, role: Role, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    for parser_role, parse in PARSERS.items():
        if role in (parser_role, Role.CLIENT):
            message = f"{name} is not a Kafka property; did you mean {meant}?"
            assert refusal(parse, {**BROKERS, name: "secret"}) == message
        else:
            parse({**BROKERS, name: "secret"})
    assert "secret" not in caplog.text


# -- rules between properties ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", 1), ("lz4", 2), ("zstd", 3), ("snappy", None), ("none", None), (None, None)]
)
def test_compression_level_is_that_of_the_codec(codec: str | None, level: int | None) -> None:
    properties = {"compression.gzip.level": "1", "compression.lz4.level": "2", "compression.zstd.level": "3"}
    assert parse_producer({**properties, **({"compression.type": codec} if codec else {})}).compression_level == level


@pytest.mark.parametrize(
    ("parse", "options", "field", "value"),
    [
        (parse_client, {"reconnect.backoff.ms": 5_000}, "reconnect_backoff_ms", 5_000),
        (parse_client, {"reconnect.backoff.ms": 5_000}, "reconnect_backoff_max_ms", 5_000),
        (parse_client, {"reconnect.backoff.ms": 20}, "reconnect_backoff_max_ms", 1_000),
        (parse_client, {"security.protocol": "plaintext"}, "security_protocol", "PLAINTEXT"),
        (parse_consumer, {"check.crcs": "TRUE"}, "check_crcs", True),
        (parse_producer, {"max.request.size": "1000"}, "batch_size_bytes", 1_000),
        (parse_producer, {"request.timeout.ms": "200000"}, "delivery_timeout_ms", 200_000),
        (parse_producer, {"partitioner": "consistent_random"}, "partitioner", "consistent_random"),
        (parse_producer, {"enable.idempotence": "false", "acks": "0"}, "enable_idempotence", False),
        # Kafka's number of the default level.
        (parse_producer, {"compression.type": "gzip", "compression.gzip.level": "-1"}, "compression_level", None),
    ],
)
def test_value_follows_from_other_properties_without_a_warning(
    parse: Parse, options: dict[str, object], field: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert getattr(parse({**BROKERS, **options}), field) == value
    assert not caplog.messages


def test_idle_connections_may_be_kept_forever() -> None:
    assert parse_client({**BROKERS, "connections.max.idle.ms": "-1"}).connections_max_idle_ms > 10**18


@pytest.mark.parametrize(
    ("parse", "options", "words"),
    [
        (parse_client, {"bootstrap.servers": ["a:1"]}, "given as list"),
        (parse_client, {"client.id": None}, "given as NoneType"),
        (parse_consumer, {"group.protocol": "classic"}, "there is no group; set group.id"),
        (parse_consumer, {**CLASSIC, "group.remote.assignor": "range"}, "only consumer use it"),
        (parse_consumer, {**KIP_848, "session.timeout.ms": 9000}, "only classic use it"),
        (parse_consumer, {**KIP_848, "heartbeat.interval.ms": 9000}, "only classic use it"),
        (parse_consumer, {**KIP_848, "partition.assignment.strategy": "range"}, "only classic use it"),
        (parse_consumer, {"group.id": "g", "group.instance.id": "a"}, "is none, and only classic and consumer use it"),
        (parse_consumer, {**CLASSIC, "session.timeout.ms": 3000}, "heartbeat.interval.ms is 3000, which is not below"),
        (parse_consumer, {"request.timeout.ms": "400"}, "fetch.max.wait.ms is 500, which is not below"),
        (parse_producer, {"enable.idempotence": "true", "acks": "1"}, "enable.idempotence is true, but acks is 1"),
        (parse_producer, {"delivery.timeout.ms": "30000", "linger.ms": "1"}, "is 30000, less than linger.ms and"),
        (parse_producer, {"partitioner": "fnv1a", "partitioner.class": "fnv1a"}, "partitioner and partitioner.class"),
    ],
)
def test_invalid_combination_is_refused_as_in_java(parse: Parse, options: dict[str, object], words: str) -> None:
    assert words in refusal(parse, {**BROKERS, **options})


def test_configuration_without_properties_is_checked_too() -> None:
    with pytest.raises(ConfigurationError, match=r"^enable.idempotence is true, but retries is 0\. Leave out one of"):
        ProducerConfig(retries=0)


@pytest.mark.parametrize(
    ("parse", "options", "warning"),
    [
        (parse_client, {"acks": "1", "group.id": "g"}, None),
        (parse_client, {**PLAIN, "security.protocol": "SASL_SSL"}, None),
        (
            parse_client,
            {**PLAIN, "security.protocol": "SASL_SSL", "sasl.oauthbearer.config": "region=a"},
            "sasl.oauthbearer.config has no effect: sasl.oauthbearer.metadata.authentication.type is none",
        ),
        (parse_client, {**PLAIN, "security.protocol": "SASL_PLAINTEXT"}, "PLAIN sends credentials unencrypted"),
        (parse_consumer, {"acks": "1", "group.id": "g"}, "acks has no effect: it is a property of producers"),
        (
            parse_consumer,
            {"group.id": "g", "max.poll.interval.ms": 1},
            "poll.interval.ms has no effect: group.protocol",
        ),
        (parse_producer, {"acks": "-1", "group.id": "g"}, "group.id has no effect: it is a property of consumers"),
        (parse_producer, {"batch.size": "2000000"}, "batch.size is cut to max.request.size (1048576)"),
        (parse_producer, {"compression.zstd.level": "5"}, "zstd.level has no effect: compression.type is none"),
        (parse_producer, {**LZ4, "compression.gzip.level": "5"}, "gzip.level has no effect: compression.type is lz4"),
        (parse_producer, {**NOT_ADAPTIVE, "partitioner.availability.timeout.ms": "5"}, f"{HAS_NO_EFFECT} is false"),
        (parse_producer, {"partitioner": "random", "partitioner.ignore.keys": "true"}, "partitioner.class is random"),
        (parse_producer, {**NOT_ADAPTIVE, "partitioner.class": "round_robin"}, "partitioner.class is round_robin"),
        # Idempotence, which is the default, conflicts with them.
        (parse_producer, {"acks": "1"}, "acks is 1, not all: a retry can make duplicates"),
        (parse_producer, {"retries": "0"}, "retries is 0"),
        (parse_producer, {"max.in.flight.requests.per.connection": "6"}, "max.in.flight.requests.per.connection is 6"),
    ],
)
def test_property_without_effect_beside_another_is_a_warning(
    parse: Parse, options: dict[str, object], warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    parse({**BROKERS, **options})
    assert len(caplog.messages) == (warning is not None)
    assert (warning or "") in caplog.text


@pytest.mark.parametrize("option", [{"acks": "1"}, {"retries": "0"}, {"max.in.flight.requests.per.connection": "6"}])
def test_default_idempotence_is_disabled_by_a_conflict(option: dict[str, object]) -> None:
    assert not parse_producer(option).enable_idempotence
