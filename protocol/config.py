"""Configuration of clients, consumers and producers: frozen values parsed from Kafka's properties.

This module holds the defaults and the rules between properties; names and kinds of values are in
`protocol.properties`. The values are hashable and can be pickled. Passwords and keys are `Secret`.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from protocol.base.once import warn_once
from protocol.errors import ConfigurationError, UsageError
from protocol.properties import read
from protocol.sasl.config import NO_SASL, SaslConfig
from protocol.sasl.credentials import credentials
from protocol.security.tls_config import DEFAULT_TLS, TLSConfig, parse_tls
from protocol.settings.property_kinds import MAX_INT32, Role
from protocol.settings.secret import hide_variables, pickled_with_secrets

IsolationLevel = Literal["read_uncommitted", "read_committed"]
OffsetReset = Literal["earliest", "latest", "none"]
GroupProtocol = Literal["none", "classic", "consumer"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
PartitionStrategy = Literal[
    "murmur2",
    "fnv1a",
    "fnv1a_reference",
    "crc32",
    "consistent",
    "consistent_random",
    "murmur2_consistent",
    "fnv1a_consistent",
    "random",
    "round_robin",
    "manual",
]

_MAX_IN_FLIGHT_IF_IDEMPOTENT = 5  # a broker remembers the last five batches of a producer


@dataclass(frozen=True)
class ClientConfig:
    """Connection to a cluster, as parsed by `parse_client`.

    `bootstrap_servers`: (host, port) pairs, in the order in which to try them.

    The other attributes are Kafka's client properties of the same name, with `_` for `.`.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "spark-kafka-source"
    security_protocol: SecurityProtocol = "PLAINTEXT"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    socket_connection_setup_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    # Below the 10 minutes after which a broker closes, so that both ends do not close at the same time.
    connections_max_idle_ms: int = 540_000
    # Java's client fixes 64 and 128 KiB; the system's own tuning goes higher on networks with high latency.
    receive_buffer_bytes: int = -1
    send_buffer_bytes: int = -1
    max_response_bytes: int = 104_857_600
    tls: TLSConfig = DEFAULT_TLS
    sasl: SaslConfig = NO_SASL

    def __post_init__(self) -> None:
        if not self.bootstrap_servers:
            raise ConfigurationError("bootstrap.servers is empty; give host:port[,host:port...].")

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark carries this object to its executors, which connect to brokers, too. Only this method includes secrets.
        return _unpickled, (type(self), pickled_with_secrets(vars(self)))


def _unpickled(kind: type[ClientConfig], fields: bytes) -> ClientConfig:
    return kind(**pickle.loads(fields))  # noqa: S301


@dataclass(frozen=True)
class ConsumerConfig:
    """How to read records, and for which group; Kafka's consumer properties with `_` for `.`."""

    group_id: str | None = None
    group_protocol: GroupProtocol = "none"
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    # Java's default. All members support both until the last range-only member has left (KIP-429).
    # Or names and `PartitionAssignor`s.
    partition_assignment_strategy: str | tuple[object, ...] = "range,cooperative-sticky"
    group_remote_assignor: str | None = None
    auto_offset_reset: OffsetReset = "latest"
    isolation_level: IsolationLevel = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    # Java's default of 1 MiB suits replies that serve all partitions of a consumer. A Spark task reads one partition,
    # so this is the whole reply (the first ones are smaller): 8 MiB takes an eighth of the round trips, decodes many
    # small record batches at once, and holds only 16 MiB with the next reply in flight.
    max_partition_fetch_bytes: int = 8 * 1024 * 1024
    # A broker with `replica.selector.class` then names a replica in this rack to read from (KIP-392).
    client_rack: str = ""
    # sarama's default. Fetches do not wait for a partition that has not been read for this long.
    max_processing_time_ms: int = 100
    check_crcs: bool = True
    max_decompressed_batch_bytes: int = 134_217_728


@dataclass(frozen=True)
class ProducerConfig:
    """How to write records; Kafka's producer properties with `_` for `.`.

    `acks` ({-1, 0, 1}): -1: all in-sync replicas.
    `compression_level`: None: the codec's default.
    `linger_ms`: None: send a record batch only when it is full or flushed.
    """

    acks: Literal[-1, 0, 1] = -1
    compression_type: Compression = "none"
    compression_level: int | None = None
    # Java's default since Kafka 4.0. None: send a record batch only when it is full or flushed.
    linger_ms: int | None = 5
    # Java's 16 KiB suit records that arrive one by one. Here whole columns arrive at once, and each record batch has a
    # fixed cost for client and broker. 1 MiB is the brokers' default limit (message.max.bytes).
    batch_size_bytes: int = 1_048_576
    batch_num_messages: int = MAX_INT32
    max_request_size_bytes: int = 1_048_576
    max_in_flight_requests_per_connection: int = 5
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    retries: int = MAX_INT32
    delivery_timeout_ms: int = 120_000
    # Twice Java's: buffered records may take up to delivery.timeout.ms, and callers must not give up earlier.
    max_block_ms: int = 120_000
    partitioner: PartitionStrategy = "murmur2"
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_availability_timeout_ms: int = 0
    # Twice Java's 32 MiB: whole columns arrive at once, and each partition's record batch is 1 MiB.
    buffer_memory_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        conflict = _not_idempotent(self.acks, self.retries, self.max_in_flight_requests_per_connection)
        if self.enable_idempotence and conflict:
            name, why = conflict
            raise ConfigurationError(
                f"enable.idempotence is true, but {why}. Leave out one of the two.",
                settings=("enable.idempotence", name),
            )
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigurationError(
                "transactional.id requires enable.idempotence=true. Leave out transactional.id, or enable idempotence.",
                settings=("transactional.id", "enable.idempotence"),
            )


@hide_variables
def named_properties(properties: Mapping[str, object] | None, named: Mapping[str, object]) -> dict[str, object]:
    """Return properties with those given by keyword, whose names have underscores for dots: `bootstrap_servers`.

    Raises `UsageError`: `properties` is no mapping, such as the address of a broker.
    """
    if not isinstance(properties, Mapping | None):
        kind = type(properties).__name__
        raise UsageError(f'the properties are a {kind}; give a dict, such as {{"bootstrap.servers": "broker-1:9092"}}')
    return {**(properties or {}), **{name.replace("_", "."): value for name, value in named.items()}}


@hide_variables
def parse_client(properties: Mapping[str, object]) -> ClientConfig:
    """Parse the connection part of Kafka's properties.

    `properties`: Kafka's names; values are text, numbers or booleans. Properties of consumers and producers are
    skipped.
    Raises `ConfigurationError`: a property has a wrong value, is forbidden, or conflicts with another property.
    """
    values = read(properties, Role.CLIENT)
    if "bootstrap_servers" not in values:
        raise ConfigurationError(
            "bootstrap.servers is missing; give host:port[,host:port...].", settings=("bootstrap.servers",)
        )
    # As in Java's client: setting only the first wait never makes it longer than the maximum.
    initial_ms = values.get("reconnect_backoff_ms", ClientConfig.reconnect_backoff_ms)
    values.setdefault("reconnect_backoff_max_ms", max(ClientConfig.reconnect_backoff_max_ms, initial_ms))
    _resolve_tls(values)
    _resolve_sasl(values)
    return ClientConfig(**values)


def _resolve_tls(values: dict[str, Any]) -> None:
    tls_values = {name.removeprefix("ssl_"): values.pop(name) for name in list(values) if name.startswith("ssl_")}
    protocol = values.get("security_protocol", ClientConfig.security_protocol)
    if protocol.endswith("SSL"):
        values["tls"] = parse_tls(tls_values)
    elif tls_values:
        warn_once(f"ssl.* has no effect: security.protocol is {protocol}", "ssl.*", "security.protocol")


def _resolve_sasl(values: dict[str, Any]) -> None:
    sasl_values = {name.removeprefix("sasl_"): values.pop(name) for name in list(values) if name.startswith("sasl_")}
    protocol = values.get("security_protocol", ClientConfig.security_protocol)
    if not protocol.startswith("SASL"):
        if sasl_values:
            warn_once(f"sasl.* has no effect: security.protocol is {protocol}", "sasl.*", "security.protocol")
        return
    values["sasl"] = sasl = SaslConfig(**sasl_values)
    credentials(sasl)  # raises errors now; references are resolved only when a connection is opened
    if sasl.metadata_config is not None and sasl.metadata_type == "none":
        name, kind = "sasl.oauthbearer.config", "sasl.oauthbearer.metadata.authentication.type"
        warn_once(f"{name} has no effect: {kind} is none", name, kind)
    if protocol == "SASL_PLAINTEXT" and sasl.mechanism in ("PLAIN", "OAUTHBEARER"):
        warn_once(
            f"security.protocol is {protocol}: {sasl.mechanism} sends credentials unencrypted; use SASL_SSL",
            "security.protocol",
        )


@hide_variables
def parse_consumer(properties: Mapping[str, object]) -> ConsumerConfig:
    """Parse the consumer part of Kafka's properties.

    `properties`: Kafka's names; values are text, numbers or booleans; `partition.assignment.strategy` may also have
    `PartitionAssignor`s. A producer property logs one warning.
    Raises `ConfigurationError`: a property has a wrong value, is forbidden, or conflicts with another property.
    """
    strategy = properties.get(_STRATEGY)
    values = read({name: value for name, value in properties.items() if name != _STRATEGY}, Role.CONSUMER)
    if isinstance(strategy, str):
        values |= read({_STRATEGY: strategy}, Role.CONSUMER)
    elif strategy is not None:
        strategies = strategy if isinstance(strategy, list | tuple) else [strategy]
        values["partition_assignment_strategy"] = tuple(strategies)
    config = ConsumerConfig(**values)
    _check_membership(config, properties)
    timeout_ms = _request_timeout_ms(properties)
    if config.fetch_max_wait_ms >= timeout_ms:
        raise ConfigurationError(
            f"fetch.max.wait.ms is {config.fetch_max_wait_ms}, which is not below request.timeout.ms "
            f"({timeout_ms}): every idle fetch would time out. Lower the one or raise the other.",
            settings=("fetch.max.wait.ms", "request.timeout.ms"),
        )
    return config


_STRATEGY = "partition.assignment.strategy"
# Properties that only group members use, with the group protocols that use them. As in Java's consumer, setting one
# of them under another protocol is an error.
_OF_MEMBERS: Mapping[str, tuple[GroupProtocol, ...]] = {
    "group.instance.id": ("classic", "consumer"),
    "session.timeout.ms": ("classic",),
    "heartbeat.interval.ms": ("classic",),
    "max.poll.interval.ms": ("classic", "consumer"),
    _STRATEGY: ("classic",),
    "group.remote.assignor": ("consumer",),
}


def _check_membership(config: ConsumerConfig, properties: Mapping[str, object]) -> None:
    protocol = config.group_protocol
    if protocol != "none" and config.group_id is None:
        raise ConfigurationError(
            f"group.protocol is {protocol}, but there is no group; set group.id.",
            settings=("group.protocol", "group.id"),
        )
    for name, protocols in _OF_MEMBERS.items():
        if name not in properties or protocol in protocols:
            continue
        why = f"group.protocol is {protocol}, and only {' and '.join(protocols)} use it"
        if protocol != "none" or name == "group.instance.id":
            raise ConfigurationError(
                f"{name} is given, but {why}. Leave out one of the two.", settings=(name, "group.protocol")
            )
        warn_once(f"{name} has no effect: {why}", name, "group.protocol")
    if config.heartbeat_interval_ms >= config.session_timeout_ms and protocol == "classic":
        raise ConfigurationError(
            f"heartbeat.interval.ms is {config.heartbeat_interval_ms}, which is not below "
            f"session.timeout.ms ({config.session_timeout_ms}). Lower the one or raise the other.",
            settings=("heartbeat.interval.ms", "session.timeout.ms"),
        )


@hide_variables
def parse_producer(properties: Mapping[str, object]) -> ProducerConfig:
    """Parse the producer part of Kafka's properties.

    `properties`: Kafka's names; values are text, numbers or booleans. A consumer property logs one warning.
    Raises `ConfigurationError`: a property has a wrong value, is forbidden, or conflicts with another property.

    As in Java's producer, idempotence by default is switched off if acks, retries or
    max.in.flight.requests.per.connection rule it out, and the default of delivery.timeout.ms grows with linger.ms and
    request.timeout.ms.
    """
    values = read(properties, Role.PRODUCER)
    _resolve_compression(values)
    _resolve_partitioner(values)
    _resolve_idempotence(values)
    _resolve_batch_size(values)
    _resolve_delivery_timeout(values, _request_timeout_ms(properties))
    return ProducerConfig(**values)


def _not_idempotent(acks: int, retries: int, in_flight: int) -> tuple[str, str] | None:
    """Return the property that rules idempotence out, and why."""
    if acks != -1:
        return "acks", f"acks is {acks}, not all"
    if retries == 0:
        return "retries", "retries is 0"
    if in_flight > _MAX_IN_FLIGHT_IF_IDEMPOTENT:
        name = "max.in.flight.requests.per.connection"
        return (
            name,
            f"{name} is {in_flight}, more than the {_MAX_IN_FLIGHT_IF_IDEMPOTENT} whose order brokers can keep",
        )
    return None


def _resolve_idempotence(values: dict[str, Any]) -> None:
    conflict = _not_idempotent(
        values.get("acks", ProducerConfig.acks),
        values.get("retries", ProducerConfig.retries),
        values.get("max_in_flight_requests_per_connection", ProducerConfig.max_in_flight_requests_per_connection),
    )
    if conflict and "enable_idempotence" not in values:
        name, why = conflict
        warn_once(f"enable.idempotence is off, because {why}: a retry can make duplicates", "enable.idempotence", name)
        values["enable_idempotence"] = False


def _resolve_compression(values: dict[str, Any]) -> None:
    used = values.get("compression_type", ProducerConfig.compression_type)
    levels = {codec: values.pop(f"{codec}_level") for codec in ("gzip", "lz4", "zstd") if f"{codec}_level" in values}
    values["compression_level"] = levels.pop(used, None)
    for codec in levels:
        level = f"compression.{codec}.level"
        warn_once(f"{level} has no effect: compression.type is {used}", level, "compression.type")


# Strategies that use neither keys nor the load of partitions.
_LOOKS_AT_NOTHING = ("random", "round_robin", "manual")


def _resolve_partitioner(values: dict[str, Any]) -> None:
    of_librdkafka = values.pop("librdkafka_partitioner", None)
    if of_librdkafka is not None and "partitioner" in values:
        raise ConfigurationError(
            "partitioner and partitioner.class are two names for the same. Leave out one of the two.",
            settings=("partitioner", "partitioner.class"),
        )
    if of_librdkafka is not None:
        values["partitioner"] = of_librdkafka
    _warn_of_idle_partitioning(values)


def _warn_of_idle_partitioning(values: Mapping[str, Any]) -> None:
    strategy, idle = values.get("partitioner"), ["availability.timeout.ms"]
    cause, why = "partitioner.class", f"partitioner.class is {strategy}"
    if strategy in _LOOKS_AT_NOTHING:
        idle += ["adaptive.partitioning.enable", "ignore.keys"]
    elif not values.get("partitioner_adaptive_partitioning_enable", True):
        cause = "partitioner.adaptive.partitioning.enable"
        why = f"{cause} is false"
    else:
        return
    for name in idle:
        if f"partitioner_{name.replace('.', '_')}" in values:
            warn_once(f"partitioner.{name} has no effect: {why}", f"partitioner.{name}", cause)


def _resolve_batch_size(values: dict[str, Any]) -> None:
    most = values.get("max_request_size_bytes", ProducerConfig.max_request_size_bytes)
    if values.get("batch_size_bytes", 0) > most:
        warn_once(f"batch.size is cut to max.request.size ({most})", "batch.size", "max.request.size")
    values["batch_size_bytes"] = min(values.get("batch_size_bytes", ProducerConfig.batch_size_bytes), most)


def _resolve_delivery_timeout(values: dict[str, Any], request_timeout_ms: int) -> None:
    least = values.get("linger_ms", 0) + request_timeout_ms
    timeout_ms = values.get("delivery_timeout_ms")
    if timeout_ms is not None and timeout_ms < least:
        raise ConfigurationError(
            f"delivery.timeout.ms is {timeout_ms}, less than linger.ms and request.timeout.ms together ({least}): a "
            "write would give up before its first reply. Raise it, or lower the others.",
            settings=("delivery.timeout.ms", "linger.ms", "request.timeout.ms"),
        )
    values["delivery_timeout_ms"] = max(timeout_ms or ProducerConfig.delivery_timeout_ms, least)


def _request_timeout_ms(properties: Mapping[str, object]) -> int:
    values = {name: value for name, value in properties.items() if name == "request.timeout.ms"}
    return int(read(values, Role.CLIENT).get("request_timeout_ms", ClientConfig.request_timeout_ms))
