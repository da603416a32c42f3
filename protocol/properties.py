"""The table of Kafka's client properties: description, allowed values, and effect in this client.

The table decides the effect of each property: applied, without effect, forbidden, or not supported yet.
`protocol.config` holds the defaults; the rows of TLS and SASL are in `protocol.security` and `protocol.sasl`. Errors
never show the value of an unknown property, of a SASL property, or of a resolved reference: each may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from protocol.base.once import warn_once
from protocol.base.spelling import closest_match
from protocol.errors import ConfigurationError
from protocol.sasl.config import SASL_PROPERTIES
from protocol.security.tls_config import TLS_PROPERTIES
from protocol.settings.config_providers import resolve_references
from protocol.settings.property_kinds import (
    ACKS,
    ADDRESSES,
    BOOLEAN,
    KAFKA_STRING,
    LIBRDKAFKA_PARTITIONER,
    MAX_INT64,
    MILLISECONDS,
    NONEMPTY,
    PARTITIONER,
    POSITIVE_MILLISECONDS,
    SECURITY_PROTOCOL,
    SOCKET_BUFFER,
    Effect,
    Property,
    Role,
    applies,
    forbidden,
    integer,
    no_effect,
    one_of,
)

# -- the table ------------------------------------------------------------------------------------

_CLIENT, _CONSUMER, _PRODUCER = Role.CLIENT, Role.CONSUMER, Role.PRODUCER
_client, _consumer, _producer = partial(applies, _CLIENT), partial(applies, _CONSUMER), partial(applies, _PRODUCER)
_ARROW = "keys and values are bytes in Arrow columns; convert the columns before writing or after reading"

PROPERTIES: tuple[Property, ...] = (
    _client("bootstrap.servers", ADDRESSES, "brokers to contact first; required"),
    _client("client.id", KAFKA_STRING, "the name in brokers' logs, metrics and quotas"),
    _client("security.protocol", SECURITY_PROTOCOL, "encryption and authentication of connections to brokers"),
    _client("request.timeout.ms", POSITIVE_MILLISECONDS, "the longest wait for one reply"),
    _client("default.api.timeout.ms", POSITIVE_MILLISECONDS, "the longest time of a call, including its retries"),
    _client("socket.connection.setup.timeout.ms", POSITIVE_MILLISECONDS, "the longest time to open a connection"),
    _client(
        "reconnect.backoff.ms",
        MILLISECONDS,
        "wait before a broker is connected to again after a failure; doubles with each failure",
    ),
    _client(
        "reconnect.backoff.max.ms", MILLISECONDS, "the longest such wait; by default not less than reconnect.backoff.ms"
    ),
    _client("retry.backoff.ms", MILLISECONDS, "wait before the first retry of a request; doubles each time"),
    _client("retry.backoff.max.ms", MILLISECONDS, "the longest wait before a retry"),
    _client("metadata.max.age.ms", MILLISECONDS, "the age after which metadata is refreshed"),
    _client(
        "connections.max.idle.ms",
        integer(1, also={-1: MAX_INT64}),
        "connections idle for this long are closed; -1: never",
    ),
    _client("receive.buffer.bytes", SOCKET_BUFFER, "SO_RCVBUF; -1: the system tunes it"),
    _client("send.buffer.bytes", SOCKET_BUFFER, "SO_SNDBUF; -1: the system tunes it"),
    _client("max.response.bytes", integer(1024), "limit of one reply (a property of this client, not of Kafka)"),
    _consumer("group.id", KAFKA_STRING, "the group whose offsets are read and committed"),
    _consumer(
        "auto.offset.reset",
        one_of("earliest", "latest", "none", otherwise="by_duration is not supported yet"),
        "start of a partition without a committed offset, or with one that is out of range; none: fail",
    ),
    _consumer(
        "isolation.level",
        one_of("read_uncommitted", "read_committed"),
        "read_uncommitted: also read records of aborted and open transactions",
    ),
    _consumer("fetch.min.bytes", integer(0), "a broker waits for this many bytes before it replies"),
    _consumer("fetch.max.wait.ms", MILLISECONDS, "the longest wait of a broker for fetch.min.bytes"),
    _consumer("fetch.max.bytes", integer(1), "the most bytes of one reply"),
    _consumer(
        "max.partition.fetch.bytes",
        integer(1),
        "the most bytes of one partition in a reply; a larger record batch is still returned whole",
    ),
    _consumer(
        "client.rack",
        KAFKA_STRING,
        "the rack of this client; brokers with replica.selector.class name a nearby replica to read from",
    ),
    _consumer(
        "max.processing.time.ms",
        POSITIVE_MILLISECONDS,
        "for `Consumer`, `KafkaConsumer` and `ConsumerGroup`: fetches leave out a partition that has not been read for "
        "this time, until it is read (a property of this client, not of Kafka)",
    ),
    _consumer("check.crcs", BOOLEAN, "check the CRC of every record batch"),
    _consumer(
        "max.decompressed.batch.bytes",
        integer(1024),
        "limit of one decompressed record batch (a property of this client, not of Kafka)",
    ),
    _consumer(
        "group.protocol",
        one_of("none", "classic", "consumer"),
        "none: commit offsets without joining the group. Members of a group share its partitions, assigned by the "
        "group leader (classic) or by the brokers (consumer, KIP-848, since Kafka 4.0)",
    ),
    _consumer(
        "group.instance.id",
        KAFKA_STRING,
        "id of a static member: it keeps its partitions if it returns within session.timeout.ms (KIP-345)",
    ),
    _consumer(
        "session.timeout.ms",
        POSITIVE_MILLISECONDS,
        "classic: a member without a heartbeat for this time loses its partitions",
    ),
    _consumer("heartbeat.interval.ms", POSITIVE_MILLISECONDS, "classic: interval between a member's heartbeats"),
    _consumer(
        "max.poll.interval.ms",
        POSITIVE_MILLISECONDS,
        "the longest time between polls before the member leaves the group; also the rebalance timeout",
    ),
    _consumer(
        "partition.assignment.strategy",
        NONEMPTY,
        "classic: assignors in order of preference: range, roundrobin, sticky, cooperative-sticky, or the names of "
        "Java's classes for these",
    ),
    _consumer("group.remote.assignor", KAFKA_STRING, "consumer: assignor of the brokers; by default their choice"),
    _producer("acks", ACKS, "number of replicas that must confirm a write"),
    _producer("compression.type", one_of("none", "gzip", "snappy", "lz4", "zstd"), "the codec of record batches"),
    _producer("compression.gzip.level", integer(1, 9, also={-1: None}), "level of gzip", field="gzip_level"),
    _producer("compression.lz4.level", integer(1, 17), "level of lz4", field="lz4_level"),
    _producer("compression.zstd.level", integer(-131072, 22), "level of zstd", field="zstd_level"),
    _producer("linger.ms", MILLISECONDS, "wait for a record batch to fill"),
    _producer("batch.size", integer(0), "the most bytes of one record batch", field="batch_size_bytes"),
    _producer(
        "batch.num.messages",
        integer(1),
        "the most records of one record batch; a full batch is sent without waiting (librdkafka's name; sarama's "
        "Flush.Messages)",
    ),
    _producer(
        "max.request.size", integer(1), "the most bytes of one request and record", field="max_request_size_bytes"
    ),
    _producer(
        "max.in.flight.requests.per.connection",
        integer(1),
        "the most unanswered requests per broker; at most 5 with idempotence",
    ),
    _producer("enable.idempotence", BOOLEAN, "retries neither duplicate nor reorder records"),
    _producer(
        "transactional.id",
        KAFKA_STRING,
        "identity of a transactional producer across restarts: a newer producer with this id fences the older",
    ),
    _producer(
        "transaction.timeout.ms",
        POSITIVE_MILLISECONDS,
        "the coordinator aborts a transaction that is open for longer; at most the brokers' transaction.max.timeout.ms",
    ),
    _producer("retries", integer(0), "the most retries of a write within delivery.timeout.ms"),
    _producer(
        "delivery.timeout.ms",
        POSITIVE_MILLISECONDS,
        "the longest time from the moment a record batch is full or linger.ms is over until it is acknowledged",
    ),
    _producer(
        "partitioner.class",
        PARTITIONER,
        "partition of a row: by a hash of its key as in Java (murmur2) or sarama (fnv1a, fnv1a_reference, crc32), "
        "without regard to keys (random, round_robin), or only as given in the row (manual). Rows with a null key "
        "change the partition every 16 KiB",
        field="partitioner",
    ),
    _producer(
        "partitioner",
        LIBRDKAFKA_PARTITIONER,
        "the same with librdkafka's names; consistent, murmur2 and fnv1a hash null keys as empty keys",
        field="librdkafka_partitioner",
    ),
    _producer("partitioner.ignore.keys", BOOLEAN, "treat rows with a key like rows without one"),
    _producer(
        "partitioner.adaptive.partitioning.enable",
        BOOLEAN,
        "prefer partitions with fewer waiting record batches for rows without a key (KIP-794)",
    ),
    _producer(
        "partitioner.availability.timeout.ms",
        MILLISECONDS,
        "avoid partitions whose leader has accepted nothing for this time; 0: never avoid them",
    ),
    _producer(
        "buffer.memory",
        integer(1, MAX_INT64),
        "approximate limit of the bytes that wait or are in flight; a full buffer blocks further sends",
        field="buffer_memory_bytes",
    ),
    _producer(
        "max.block.ms",
        MILLISECONDS,
        "the longest wait for a topic's metadata, and for buffer memory while nothing is acknowledged",
    ),
    *no_effect(_CLIENT, "client.dns.lookup", "every address of a host name is tried"),
    *no_effect(
        _CLIENT,
        "socket.connection.setup.timeout.max.ms",
        "the connection timeout does not grow; use socket.connection.setup.timeout.ms",
    ),
    *no_effect(
        _CLIENT,
        "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
        "the recovery from the loss of all brokers cannot be configured",
    ),
    *no_effect(
        _CLIENT,
        "metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms "
        "auto.include.jmx.reporter enable.metrics.push",
        "metrics are always kept, and read with `metrics()`: docs/metrics.md",
    ),
    *no_effect(_CONSUMER, "auto.commit.interval.ms", "offsets are committed when their records have been processed"),
    *no_effect(_CONSUMER, "max.poll.records", "records arrive in columns, some thousands of rows at a time"),
    *no_effect(_CONSUMER, "exclude.internal.topics", "a pattern never matches Kafka's internal topics"),
    *no_effect(_CONSUMER, "allow.auto.create.topics", "reading a topic never creates it"),
    *no_effect(_PRODUCER, "metadata.max.idle.ms", "only metadata.max.age.ms limits how long metadata is kept"),
    *forbidden(
        _CONSUMER | _PRODUCER,
        "interceptor.classes",
        "JVM classes cannot run here; change columns instead, or pass interceptors= to Producer",
    ),
    *forbidden(_CONSUMER, "key.deserializer value.deserializer", _ARROW),
    *forbidden(_PRODUCER, "key.serializer value.serializer", _ARROW),
    *forbidden(
        _CONSUMER,
        "enable.auto.commit",
        "a timed commit may cover records that are not processed yet; offsets are committed after processing",
    ),
    *no_effect(_CLIENT, "config.providers", "the providers env, file and dir always exist, and no others"),
    *forbidden(_CLIENT, "security.providers", "JVM classes cannot run here"),
    *TLS_PROPERTIES,
    *SASL_PROPERTIES,
)

BY_NAME: Mapping[str, Property] = {row.name: row for row in PROPERTIES}


# -- reading --------------------------------------------------------------------------------------


def read(properties: Mapping[str, object], role: Role, table: Mapping[str, Property] = BY_NAME) -> dict[str, Any]:
    """Parse the properties of one role into a dict by field name.

    `properties`: Kafka's names; values are text, numbers or booleans.
    `role`: properties of other roles are skipped: those of `CLIENT` silently, others with one warning.
    `table`: the known properties by name.
    Raises `ConfigurationError`: a property is forbidden or not supported yet, has a wrong value, or is a misspelling of
    a property that applies. Any other unknown property is only a warning, as with Kafka's own clients.
    """
    values: dict[str, Any] = {}
    for name, raw in properties.items():
        row = table.get(name)
        if row is None:
            _refuse_or_warn(name, role, table)
            continue
        if row.effect in (Effect.FORBIDDEN, Effect.NOT_YET) and row.role & (role | Role.CLIENT):
            raise ConfigurationError(f"{name} is {row.effect.value}: {row.doc}.", settings=(name,))
        if row.role & role:
            if row.effect is Effect.APPLIES:
                text = _text(name, raw)
                # Texts of TLS and SASL keep their references; these are resolved when a connection is opened.
                is_raw = name.startswith(("ssl.", "sasl.")) and row.kind.allowed == NONEMPTY.allowed
                value = text if is_raw else resolve_references(text)
                # Hide resolved values in errors: a reference may point to a secret by mistake.
                kind = row.kind if value == text else row.kind.hidden()
                values[row.field] = kind.read(name, value, name)
            elif row.effect is Effect.NO_EFFECT:
                warn_once(f"{name} has no effect: {row.doc}", name)
        elif role is not Role.CLIENT and row.role is not Role.CLIENT:
            warn_once(f"{name} has no effect: it is a property of {_roles(row.role)}", name)
    return values


def _refuse_or_warn(name: str, role: Role, table: Mapping[str, Property]) -> None:
    """Raise `ConfigurationError` if the name resembles a property that applies to `role`; otherwise warn once."""
    like = closest_match(name, table)
    if like is None:
        warn_once(f"{name} has no effect: it is not a known Kafka property", name)
    elif (row := table[like]).effect is Effect.APPLIES and row.role & (role | Role.CLIENT):
        raise ConfigurationError(f"{name} is not a Kafka property; did you mean {like}?", settings=(name, like))
    elif role is not Role.CLIENT:
        warn_once(f"{name} has no effect: it is not a known Kafka property; did you mean {like}?", name, like)


def _text(name: str, raw: object) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, (str, int)):
        return str(raw)
    raise ConfigurationError(
        f"{name} is given as {type(raw).__name__}; allowed: text, a whole number, true or false.", settings=(name,)
    )


def _roles(role: Role) -> str:
    return " and ".join(word for member, word in _ROLE_WORDS.items() if member & role)


_ROLE_WORDS = {Role.CLIENT: "every client", Role.CONSUMER: "consumers", Role.PRODUCER: "producers"}
